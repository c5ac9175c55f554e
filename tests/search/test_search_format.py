"""Every example of docs/search_format.md is a search, and every operator has one."""

import ast
import json
import re
from pathlib import Path

import pytest

import rolloutlab.search
from rolloutlab.errors import InputError
from rolloutlab.search import Rank, Search, SparseVector
from rolloutlab.search.dictionary import dump, parse
from rolloutlab.search.dictionary.parse import AGGREGATES, LOGICAL
from rolloutlab.search.dictionary.parse import RANK_OPERATORS as RANKED
from rolloutlab.search.dictionary.parse import WHERE_OPERATORS as ASKED
from rolloutlab.search.dictionary.schema import json_schema
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.expression import rank_of, where_of
from rolloutlab.search.query import resolved
from rolloutlab.search.words import explain

PAGE = (Path(__file__).parents[2] / "docs" / "search_format.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def searched(kind: str, block: str) -> Search:
    """The search of an example."""
    if kind == "json":
        return parse(block)
    if kind == "text":
        try:
            return Search(where_of(block))
        except InputError:
            return Search(rank=rank_of(block))
    made = eval(compile(ast.parse(block.strip(), mode="eval"), "example", "eval"), vars(rolloutlab.search))
    return made if isinstance(made, Search) else Search(rank=made) if isinstance(made, Rank) else Search(made)


@pytest.mark.parametrize(("kind", "block"), BLOCKS)
def test_an_example_is_a_search(kind, block):
    search = searched(kind, block)
    assert search != Search()
    assert explain(search)
    assert parse(dump(search)) == search


QUESTION = "Which is the capital of France? "


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two dozen records that have every field of the page, each value in some of them."""
    records = Records(tmp_path_factory.mktemp("format") / "search.db")
    cities, models = ("Paris", "Oslo", "Lima"), ("lab/practice", "other")
    records.upsert(
        Record(
            id=str(i),
            document=f"{QUESTION}{cities[i % 3]}",
            metadata={
                "reward": i / 24,
                "reward.exact match": i % 3,
                "model": models[i // 12],
                "step": i // 3 % 4,
                "advantage_sign": i % 3 - 1,
                "turns": i % 5,
                "tokens": 30 * i,
                "reasoning": len(cities[i % 3]),
                "tools": [["look"], ["add", "look"], ["add"]][i // 4 % 3],
                "collection": ["letters", "capitals"][i % 2],
            },
            embedding=embedded(cities[i % 3] * (i + 1)),
            sparse={"topics": SparseVector((3, 17), (i / 24, 0.5))},
            reasoning=[(len(QUESTION), len(QUESTION) + len(cities[i % 3]))],
        )
        for i in range(24)
    )
    yield records
    records.close()


def embedded(text):
    return [1.0, float(text.lower().count("a")), len(text) / 10]


@pytest.mark.parametrize(("kind", "block"), BLOCKS)
def test_an_example_finds_records(kind, block, records):
    search = searched(kind, block)
    hits = execute(resolved(search, lambda texts: [embedded(text) for text in texts]), records).hits
    assert hits
    assert len(hits) < 24 or search.where is None
    scores = [hit.score for hit in hits if hit.score is not None]
    assert scores == sorted(scores)


@pytest.mark.parametrize("operator", [*LOGICAL, *ASKED, *RANKED, *AGGREGATES])
def test_every_operator_has_an_example_and_is_explained(operator):
    examples = [block for kind, block in BLOCKS if kind == "json"]
    assert any(f'"{operator}"' in block for block in examples)
    assert f"`{operator}`" in PAGE


def test_the_python_and_the_json_at_the_top_are_one_search():
    (_, first), (_, second) = BLOCKS[:2]
    assert searched("json", first) == searched("python", second)


def test_the_same_fusion_is_written_in_three_ways():
    fused = [searched(kind, block) for kind, block in BLOCKS if "return_rank" in block]
    assert fused[0] == fused[1] == fused[2]


def test_the_schema_knows_the_same_operators():
    said = json.dumps(json_schema())
    assert all(f'"{operator}"' in said for operator in (*LOGICAL, *ASKED, *RANKED, *AGGREGATES))
