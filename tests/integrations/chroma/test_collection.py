"""`%connect --search`: the same search of a collection that a Chroma keeps."""

import json

import pytest

from rolloutlab.errors import InputError, UnreachableError
from rolloutlab.session import Session
from rolloutlab.settings import Settings


@pytest.fixture
def lab(tmp_path):
    lab = Session(Settings(home=tmp_path))
    yield lab
    lab.close()


@pytest.fixture
def kept(served):
    """Two records with documents and rewards, as the server has them."""
    records = {"a": ("It is Paris", {"reward": 1.0}), "b": ("It is Oslo", {"reward": 0.0})}

    def get(body):
        ids = [i for i in records if body.get("ids") is None or i in body["ids"]]
        columns = {"documents": 0, "metadatas": 1}
        chosen = {name: [records[i][place] for i in ids] for name, place in columns.items() if name in body["include"]}
        return 200, {"ids": ids, **chosen}

    served.on("get", get)
    served.on("query", (200, {"ids": [["a", "b"]], "distances": [[0.25, 0.5]]}))
    return served


def two(texts):
    return [[1.0, float(len(text))] for text in texts]


def test_it_is_searched_as_the_lab_is(lab, kept):
    shown = lab.connect(search=f"{kept.url}/rollouts")
    assert f"{kept.url}/rollouts" in repr(shown)
    lab.index.embed_with(two)
    result = lab.search("paris", k=1)
    assert (result.names, result.notes[0]) == (["a"], f"at {kept.url}/rollouts")
    assert "It is Paris" in repr(result)
    assert result.to_frame().loc["a", "reward"] == 1.0
    assert result.explain(0).score.value == 0.25


def test_the_lab_is_searched_again_after_connect_search_lab(lab, kept):
    lab.connect(search=f"{kept.url}/rollouts")
    assert "the lab" in repr(lab.connect(search="lab"))
    assert len(lab.search()) == 0


def test_a_text_needs_the_model_that_the_vectors_are_from(lab, kept):
    lab.connect(search=f"{kept.url}/rollouts")
    with pytest.raises(InputError, match="no embedding model"):
        lab.search("paris")


def test_a_place_that_does_not_answer_changes_nothing(lab, kept):
    lab.connect(search=f"{kept.url}/rollouts")
    with pytest.raises(UnreachableError):
        lab.connect(search="http://127.0.0.1:1/rollouts")
    assert lab.settings.search.url == f"{kept.url}/rollouts"
    with pytest.raises(InputError, match="cannot be combined"):
        lab.connect("embedded", search=f"{kept.url}/rollouts")


def test_the_key_is_that_of_the_variable_and_stays_unseen(lab, kept, monkeypatch):
    monkeypatch.setenv("CHROMA_KEY", "sekret")
    shown = lab.connect(search=f"{kept.url}/rollouts", key_env="CHROMA_KEY")
    assert {headers.get("x-chroma-token") for headers in kept.headers} == {"sekret"}
    assert "sekret" not in repr(shown) + shown._repr_html_() + repr(lab.settings) + json.dumps(str(vars(lab)))


def test_hits_of_elsewhere_are_no_trajectories_of_the_lab(lab, kept):
    lab.connect(search=f"{kept.url}/rollouts")
    with pytest.raises(InputError, match="is not a trajectory name"):
        lab.search(k=1, into="mine")
    with pytest.raises(InputError, match="is not a trajectory name"):
        lab.branch(lab.search(k=1)[0])


def test_the_text_of_reasoning_is_a_field_of_the_labs_index_alone(lab, kept):
    lab.connect(search=f"{kept.url}/rollouts")
    with pytest.raises(InputError, match="#document only") as refused:
        lab.search(where="reasoning_text.regex('carr(y|ied)')")
    assert refused.value.hint == "F.document.regex('carr(y|ied)')"
    result = lab.search(where="'carry' in reasoning_text", select="reasoning_text")
    assert any("is a text in the lab's index, and a list at" in note for note in result.notes)
    assert any("F.document.contains('carry')" in note for note in result.notes)
    assert kept.bodies("get")[0]["where"] == {"reasoning_text": {"$contains": "carry"}}
