"""%search and %branch on a real lab: what was stored is found, and gone on from."""

import json
import shutil
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from rolloutlab.magics.completion import Matcher
from rolloutlab.search import F, Knn
from rolloutlab.search.documents import record_of
from rolloutlab.session import Session
from rolloutlab.settings import Settings


@pytest.fixture(scope="module")
def stored(service, tmp_path_factory):
    """The folder of a lab with two collections, of which one has rewards."""
    home = tmp_path_factory.mktemp("stored")
    with closing(Session(Settings(home=home, service=service.address), http=service.http)) as lab:
        lab.chat("capitals", "What is the capital of Peru?", n=4, max_tokens=8, seed=1)
        lab.chat("letters", "Sort these letters: d b a c", n=4, max_tokens=8, seed=1)
        lab.reward("letters", lambda answer: float(len(answer)))
    return home


@pytest.fixture
def filled(stored, tmp_path, notebook):
    """A notebook on a copy of it."""
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    return notebook


def test_a_text_finds_what_has_its_words_and_says_how(filled):
    result = filled.run("%search 'capital of Peru'")
    assert sorted(result.names) == [f"capitals:1/0/{i}" for i in range(4)]
    assert str(result.plan).startswith("8 records → bm25 4 → 4 rows")
    assert "by their words" in result.notes[0]
    assert "What is the capital of Peru?" in repr(result)
    assert "<mark>Peru</mark>" in result._repr_html_()


def test_what_comparisons_sampled_is_searched_only_where_it_is_asked_for(filled):
    name = "compare.letters.lab.practice.step0"
    filled.run(f"%%chat {name} -n 3 --max-tokens 8 --seed 1\nSort these letters: d b a c")
    shown = filled.run("%search letters -k 0")
    assert sorted(shown.names) == [f"letters:1/0/{i}" for i in range(4)]
    left_out = f"3 trajectories of comparisons left out -> --all, or --where \"collection == '{name}'\""
    assert shown.notes.count(left_out) == 1
    assert shown.explain(0).score.value == shown[0].score
    everything = filled.run("%search letters -k 0 --all")
    assert len(everything) == 7
    assert not any("left out" in note for note in everything.notes)
    assert len(filled.run(f"%search letters --where \"collection == '{name}'\"")) == 3
    assert len(filled.run(f"%search letters --where \"collection in ['letters', '{name}']\"")) == 7
    assert len(filled.run('%search letters --where "step == 0 and tokens > 0" -k 0')) == 4
    cell = '%%search {}\n{{"where": {{"#document": {{"$contains": "letters"}}}}}}'
    assert [len(filled.run(cell.format(how))) for how in ("", "--all")] == [4, 7]


def test_the_title_says_how_many_contain_the_words_and_copies_of_a_prompt_are_one_row(filled):
    lines = repr(filled.run("%search 'capital of Peru'")).splitlines()
    assert lines[0].startswith("4 answers  of 8 contain these words, ")
    filtered = repr(filled.run("%search 'capital of Peru' --where \"collection == 'capitals'\""))
    assert filtered.startswith("4 answers  of 4 that fit contain these words, ")
    assert lines[2].endswith(" and 3 more")
    assert "What is the capital of Peru?" in lines[3]
    assert repr(filled.run("%search --where 'reward >= 0' -k 1")).startswith("4 answers  of 8 fit, 1 shown, ")
    alike = "1 row for 3 answers: equal texts are one row"
    assert f"{alike} -> -k 9 for about 3" in repr(filled.run("%search 'capital of Peru' -k 3"))
    assert "-> -k" not in repr(filled.run("%search 'capital of Peru'"))


def test_an_option_unlike_all_others_is_answered_with_how_to_see_them(filled):
    assert filled.error("%search --sort reward").endswith("%%search? shows the options")
    assert filled.error("%search --wheer x").endswith("-> --where")


def test_the_fields_are_listed_with_one_for_all_parts_of_rewards(filled):
    filled.run("%%reward letters\nreturn {'right': 1.0}")
    fields = filled.error("%search --where 'zzz == 1'").rpartition("-> ")[2].split(", ")
    assert {"reward", "reward.PART", "tokens", "finish_reason"} <= set(fields)


def test_conditions_and_ranks_are_typed_as_python_writes_them(filled):
    worst = filled.run("%search --where \"collection == 'letters'\" --rank \"field('reward')\" -k 2 -o worst")
    assert filled["worst"] is worst
    assert [hit.score for hit in worst] == sorted(hit.metadata["reward"] for hit in filled.run("%search -k 0 letters"))[
        :2
    ]
    same = filled.lab.search(where=F.collection == "letters", rank="field('reward')", k=2)
    assert same.names == worst.names


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("letters.jsonl", "jsonl"),
        ("letters.jsonl.gz", "jsonl"),
        ("letters.parquet", "parquet"),
        ("letters.jsonl", "openai"),
        ("letters.jsonl", "art"),
        ("letters.json", "art"),
    ],
)
def test_what_any_format_brings_in_is_searched(filled, tmp_path, file, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    filled.run(f"%export letters {tmp_path / file} --format {kind}")
    filled.run(f"%import {tmp_path / file} again --format {kind}")
    rewards = "" if kind == "openai" else " and reward >= 0"  # that format has none
    result = filled.run(f"%search -k 0 letters --where \"collection == 'again'{rewards}\"")
    assert len(result.names) == 4
    assert "cannot" not in repr(filled.run("%search --status")) + "".join(result.notes)


IMPORTED = {
    "messages_and_choices": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}],
    "reward": 1.0,
}


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({}, None),
        ({"start_time": "1970-01-01t00:01:00z"}, 60),
        ({"start_time": "1970-01-01T00:01:00"}, 60),
        ({"start_time": "0001-01-01T00:00:00Z"}, -62135596800),
        ({"start_time": "0001-01-01T00:00:00+14:00"}, -62135647200),
        ({"start_time": "1972-06-30T23:59:60Z"}, 78796799),
        ({"messages_and_choices": [{"role": "user", "content": "Where?", "tool_calls": ["none"]}]}, None),
        ({"source": None, "components": {"right": 1}}, None),
    ],
)
def test_a_trajectory_from_elsewhere_is_searched_beside_the_others(notebook, tmp_path, changed, seconds):
    (tmp_path / "one.jsonl").write_text(json.dumps(IMPORTED | changed) + "\n")
    notebook.run(f"%import {tmp_path / 'one.jsonl'} one")
    (hit,) = notebook.run("%search where --where 'reward == 1'")
    assert "source" not in hit.metadata
    assert seconds is None or hit.metadata["time"] == seconds


def test_what_cannot_be_read_is_left_out_and_listed_and_the_rest_is_searched(filled, tmp_path):
    lab = sqlite3.connect(tmp_path / "lab.db")
    lab.execute("UPDATE trajectories SET items = '{' WHERE id = (SELECT max(id) FROM trajectories)")
    lab.commit()
    filled.run("%search --reindex")
    result = filled.run("%search -k 0")
    assert (len(result.names), "letters:1/0/3" in result.names) == (7, False)
    assert "1 trajectory unreadable and left out of every search -> %search --status" in result.notes
    status = repr(filled.run("%search --status"))
    assert "7 of 8 trajectories are indexed" in status
    assert "up to date" in status
    assert "  letters:1/0/3: " in status
    lab.execute("UPDATE trajectories SET items = '[]', components = '{' WHERE items = '{'")
    lab.commit()
    lab.close()
    assert "letters:1/0/0: JSONDecodeError" in repr(filled.run("%search --reindex"))
    assert len(filled.run("%search -k 0").names) == 4
    filled.run("%collections --delete letters")
    assert "unreadable" not in "".join(filled.run("%search -k 0").notes)


@pytest.mark.parametrize(
    ("error", "fails_on"),
    [(AttributeError, {"letters:1/0/3"}), (RuntimeError, {"letters:1/0/3"}), (KeyError, None)],
)
def test_a_bug_of_ours_is_raised_and_not_called_an_unreadable_trajectory(filled, monkeypatch, error, fails_on):
    def broken(entry, job=None):
        if fails_on is None or entry.name in fails_on:
            raise error("of ours")
        return record_of(entry, job)

    with monkeypatch.context() as patched:
        patched.setattr("rolloutlab.search.index.record_of", broken)
        with pytest.raises(error, match="of ours") as raised:
            filled.run("%search --reindex")
        assert bool(getattr(raised.value, "__notes__", None)) == (fails_on is None)
        with pytest.raises(error, match="of ours"):
            filled.run("%search -k 0")
        assert "left out" not in repr(filled.run("%search --status"))
    assert len(filled.run("%search -k 0").names) == 8


def test_a_lab_that_was_closed_opens_anew_for_the_next_cell_that_needs_it(filled, capsys):
    filled.run("%search letters")
    filled.lab.close()
    filled.run("1")
    assert "Error" not in "".join(capsys.readouterr())
    assert len(filled.run("%search letters")) == 4


def test_groups_keep_their_best(filled):
    result = filled.run("%search --rank \"-1 * field('tokens')\" --group-by collection")
    assert sorted(hit.metadata["collection"] for hit in result) == ["capitals", "letters"]


def test_a_result_is_a_frame(filled):
    frame = filled.run("%search letters --select reward,step").to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert (list(frame.columns), frame.index.name) == (["score", "reward", "step"], "trajectory")
    assert {"score", "model"} <= {*filled.run("%search letters").to_frame().columns}


@pytest.mark.parametrize(
    ("select", "columns"),
    [
        (["#id"], []),
        (["#score"], ["score"]),
        (["#document"], ["document"]),
        (["reward", "step"], ["reward", "step"]),
        (["step", "#document", "#score"], ["score", "step", "document"]),
    ],
)
def test_a_frame_has_what_the_search_selects_and_nothing_else(filled, select, columns):
    whole = {"rank": {"$knn": {"query": "letters"}}, "select": select}
    frame = filled.lab.search(whole).to_frame()
    assert (list(frame.columns), len(frame)) == (columns, 4)
    everything = filled.lab.search({**whole, "select": [*select, "#metadata"]}).to_frame()
    assert {"model", "reward", "tokens"} <= {*everything.columns}


def test_the_best_of_each_group_by_a_field_need_no_rank(filled):
    best = {"keys": ["collection"], "aggregate": {"$max_k": {"keys": ["tokens"], "k": 2}}}
    result = filled.run("%%search\n" + json.dumps({"group_by": best}))
    assert sorted(hit.metadata["collection"] for hit in result) == ["capitals"] * 2 + ["letters"] * 2
    assert [hit.score for hit in result] == [None] * 4
    assert "2 groups" in repr(result)


def test_a_vector_without_an_embedding_model_is_an_error_and_with_one_it_is_compared(filled):
    query = "%%search\n" + json.dumps({"rank": {"$knn": {"query": [1.0, 2.0]}}})
    error = filled.error(query)
    assert "is a vector, no record has one, and there is no embedding model" in error
    assert "%search --embed-with MODEL" in error
    filled.shell.user_ns["sizes"] = lambda texts: [[float(len(text)), 1.0] for text in texts]
    filled.run("%search --embed-with sizes")
    assert len(filled.run(query).names) == 8


def test_a_score_is_explained_on_demand(filled):
    result = filled.run("%search --rank \"knn('sort', limit=4) + 0.5 * field('reward', default=0)\"")
    response = repr(result.explain(0))
    assert response.startswith(result.names[0])
    assert "FieldTerm('reward', default=0)" in response
    filled.run("%search --where 'step == 0' -o plain")
    assert "nothing was ranked" in filled.error("plain.explain(0)")


def test_a_cell_is_a_whole_dictionary(filled):
    result = filled.run('%%search\n{"where": {"reward": {"$gte": 0}}, "limit": 2}')
    assert result.names == ["letters:1/0/0", "letters:1/0/1"]
    assert "reward" in result.words()
    assert filled.error('%%search\n{"where": {"reward": {"$gte": 0}}, "limit": 2').startswith(
        "InputError: the search is not JSON"
    )


REFUSED = [
    ("--where 'rewad < 1'", "no record has a field 'rewad'"),
    ("--where 'reward <'", "reward <"),
    ("x --rank 'y'", "either a text or a rank"),
    ("--group-by model", "group_by needs a text or a rank"),
    ("x -k -1", "k must be an integer ≥ 0, not -1"),
    ("x --best 0 --group-by model", "best must be an integer ≥ 1, not 0"),
    ("--rank \"knn('x', key='nosuch')\"", "nosuch"),
    ("' '", "not a text to search for"),
    ("--where 'step == 99' --into found", "the search has no hits to copy into found"),
    ("x --model lab/practice", "belong to --embed-with"),
    ("x --best 2", "best needs group_by"),
    ("x --k 2", "unrecognized arguments: --k"),
    ("'unclosed", "unterminated quote"),
    ("x --status", "search nothing"),
    ("x --group-by 5", "no record has a field '5'"),
]


def test_what_is_wrong_is_said_and_what_to_type(filled):
    for line, message in REFUSED:
        error = filled.error(f"%search {line}")
        assert message in error, line
        assert "\n  -> " in error, line


def test_a_cell_and_its_line_are_not_two_searches(filled):
    assert "the whole search" in filled.error('%%search capital -k 1\n{"limit": 2}')


def test_a_text_needs_no_quotes(filled):
    assert filled.run("%search capital of Peru").names == filled.run("%search 'capital of Peru'").names


def test_fields_of_rows_and_parts_of_rewards_are_known_at_the_first_search(notebook):
    notebook.run("%%chat cities -n 2 --over countries --max-tokens 4 --seed 1\nThe capital of {{country}}?")
    notebook.run("%%reward cities\nreturn {'length': float(len(answer)), 'fixed': 1.0}")
    assert len(notebook.run("%search --where \"row.country == 'Peru' and reward.fixed == 1\"")) == 2


def test_all_means_all(filled):
    assert len(filled.run("%search sort capital -k 0")) == 8
    groups = filled.run("%search sort capital --group-by group --best 3")
    assert len({name.rpartition("/")[0] for name in groups.names}) == 2


def test_texts_are_compared_by_the_model_that_is_given(filled):
    filled.run("def embed(texts): return [[text.count('Peru'), text.count('letters'), 0.1] for text in texts]")
    assert "no vectors" in repr(filled.run("%search --status"))
    result = filled.run("%search 'in Peru' --embed-with embed -k 4")
    assert {name.partition(":")[0] for name in result.names} == {"capitals"}
    assert result.notes == ("texts are compared by meaning: embed",)
    assert "<mark>Peru</mark>" in result._repr_html_()
    assert "in Peru" in result.words()
    assert "8 with vectors of embed (3)" in repr(filled.run("%search --status"))
    assert "by their words" in filled.run("%search Peru --embed-with none").notes[0]
    assert "8 of 8 trajectories are indexed" in repr(filled.run("%search --reindex"))


def test_hits_become_a_collection_that_can_be_scored(filled):
    filled.run("%search 'Sort' -k 3 --into hard")
    result = filled.lab.collection("hard")
    assert filled.run("%search 'Sort' -k 1 --into hard").notes[-1] == "copied to hard:2"
    result = filled.lab.collection("hard:1")
    assert {t.reward for t in result.trajectories} <= {t.reward for t in filled.lab.collection("letters").trajectories}
    assert (len(result), {t.prompt for t in result.trajectories}) == (3, {"Sort these letters: d b a c"})
    filled.run("%%reward hard --overwrite\nreturn 0.5")


def test_a_branch_is_the_next_cell(filled):
    messages = filled.run("%branch letters:1/0/3 --as again")
    assert messages == [{"role": "user", "content": "Sort these letters: d b a c"}]
    written = filled.shell.rl_next_input
    assert written == "%%chat again -n 8\nuser: Sort these letters: d b a c"
    assert len(filled.run(written.replace("-n 8", "-n 2 --max-tokens 2")).trajectories) == 2
    hit = filled.run("%search letters -o r")[0]
    filled.shell.user_ns["hit"] = hit
    assert filled.run("%branch hit --turn 0") == messages
    assert filled.run("%branch r[0] --turn 0") == messages
    assert "has 1 answer, " in filled.error("%branch hit --turn 1")
    assert "not a valid collection name" in filled.error("%branch hit --as a;b")
    assert "there is no trajectory" in filled.error("%branch letters:1/99/0")
    assert "is not a trajectory name" in filled.error(f"%branch letters:1/{'9' * 30}/0")


def test_python_says_the_same_with_values(filled):
    result = filled.lab.search(rank=Knn("sort") - 0.0, where={"collection": "letters"}, k=3)
    assert len(result) == 3


@pytest.mark.parametrize(
    ("line", "begun", "offered"),
    [
        ('%search --where "rew', "rew", ["reward", "reward_error"]),
        ('%search x --where "reward < 1 and mod', "mod", ["model"]),
        ("%search --where \"collection == 'cap", "cap", ["capitals"]),
        ("%search --where \"collection in ('letters', '", "", ["capitals", "letters"]),
        ("%search --rank \"knn('x') - field('tok", "tok", ["tokens"]),
        ("%search --select reward,ste", "ste", ["step"]),
        ("%search --group-by=coll", "coll", ["collection"]),
        ("%search --where \"nosuch == 'x", "x", []),
    ],
)
def test_fields_and_what_they_hold_are_completed(filled, line, begun, offered):
    filled.run("%search")
    assert Matcher(filled.shell).complete(line, 0, len(line)) == (begun, offered)


def test_completing_makes_no_index(notebook):
    assert Matcher(notebook.shell).complete('%search --where "rew', 0, 20) == ("", [])
    assert not notebook.lab.settings.search_database.exists()


def test_quotes_around_an_option_are_not_part_of_it(filled):
    filled.run('%search sort --into "hard"')
    assert "hard" in {each.name for each in filled.lab.store.collections()}


def test_a_condition_without_quotes_is_told_to_be_quoted(filled):
    assert '--where "reward < 0.5"' in filled.error("%search --where reward < 0.5")


def test_no_model_has_no_name(filled):
    assert "--embed-with none" in filled.error("%search --embed-with none --model small")


def test_what_is_selected_beside_metadata_is_told_with_its_sign(filled):
    assert "#document" in filled.error("%search --select document")


def test_a_field_that_is_no_name_is_completed_as_a_condition_wants_it(notebook):
    notebook.shell.user_ns["rows"] = [{"my kind": "sort"}]
    notebook.run("%%chat letters --over rows --max-tokens 4 --seed 1\nSort these letters: d b a c")
    result = notebook.run("%search --where \"`row.my kind` == 'sort'\"")
    assert result.names == ["letters:1/0/0"]
    line = '%search --where "row.my'
    assert Matcher(notebook.shell).complete(line, 0, len(line)) == ("row.my", ["`row.my kind`"])
    line = "%search --select row.my"
    assert Matcher(notebook.shell).complete(line, 0, len(line)) == ("row.my", ["row.my kind"])
