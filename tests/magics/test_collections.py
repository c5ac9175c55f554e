"""%collections: the table, and keeping house."""

import pytest

from rolloutlab.errors import InputError
from rolloutlab.trajectories.collection import select


@pytest.fixture
def filled(notebook):
    for name in ("capitals", "rivers", "capitals"):
        notebook.run(f"%%chat {name} -n 2 --max-tokens 2\nHello")
    return notebook


def test_a_pattern_lists_some(filled):
    assert list(filled.run("%collections 'cap*'").index) == ["capitals", "capitals:1"]
    assert list(filled.run("%collections r*").index) == ["rivers"]
    assert list(filled.run("%collections").index) == ["capitals", "rivers", "capitals:1"]


def test_a_pattern_that_nothing_matches_is_said_and_not_taken_for_an_empty_lab(filled, capsys):
    assert len(filled.run("%collections 'zzz*'")) == 0
    printed = capsys.readouterr().out
    assert "none match zzz*" in printed
    assert "none yet" not in printed


def test_what_comparisons_sampled_is_left_out_until_it_is_asked_for(filled, capsys):
    filled.lab.store.open_collection("compare.rivers.lab.practice.step0")
    filled.lab.store.open_collection("compare.rivers.step3")  # as earlier versions call it
    hidden = ["compare.rivers.step3", "compare.rivers.lab.practice.step0"]
    capsys.readouterr()
    assert list(filled.run("%collections").index) == ["capitals", "rivers", "capitals:1"]
    assert "2 collections of comparisons are hidden: %collections --all" in capsys.readouterr().out
    assert list(filled.run("%collections --all").index) == [*hidden, "capitals", "rivers", "capitals:1"]
    assert list(filled.run("%collections 'compare.*'").index) == hidden
    assert "are hidden" not in capsys.readouterr().out
    assert list(filled.run("%collections r*").index) == ["rivers"]
    assert "are hidden" not in capsys.readouterr().out
    assert list(filled.run("%collections c*").index) == ["capitals", "capitals:1"]
    assert "2 collections of comparisons are hidden" in capsys.readouterr().out


def test_a_pattern_means_what_comparisons_sampled_only_where_it_begins_as_their_names(filled):
    filled.lab.store.open_collection("compare.rivers.lab.practice.step0")
    assert [each.name for each in select(filled.lab.store, "*r*")] == ["rivers"]
    assert [each.name for each in select(filled.lab.store, "compare.r*")] == ["compare.rivers.lab.practice.step0"]


def test_the_table_says_what_is_there(filled):
    row = filled.run("%collections -o table").loc["rivers"]
    assert (row["groups"], row["trajectories"], row["missing"], row["scored"]) == (1, 2, 0, 0)
    assert {"prompt_tokens", "completion_tokens"} <= set(filled["table"].columns)


def test_generations_are_folded_into_a_row_of_their_name(filled):
    table = filled.run("%collections")
    assert [line.split()[0] for line in repr(table).splitlines()] == ["Collections", "collection", "capitals", "rivers"]
    html = table._repr_html_()
    assert "2 generations" in html
    assert html.index("2 generations") < html.index("capitals:1") < html.index("<b>rivers</b>")
    lines = repr(filled.run("%collections capitals")).splitlines()
    assert [line.split()[0] for line in lines] == ["Collections", "collection", "capitals", "capitals:1"]


def test_a_mean_says_over_how_many_answers_it_is_where_some_have_no_reward(filled):
    filled.lab.rewards("rivers").set("rivers/0/0", 0.25)
    table = filled.run("%collections r*")
    assert "0.25 (1 of 2)" in repr(table)
    assert '<b>0.25</b> <span class="rl-dim">(1 of 2)</span>' in table._repr_html_()
    filled.lab.rewards("rivers").set("rivers/0/1", 0.75)
    assert "of 2)" not in repr(filled.run("%collections r*"))
    filled.lab.rewards("capitals").set("capitals/0/1", 1)
    assert ">1.00 (1 of 2)<" in filled.run("%collections")._repr_html_()


def test_what_pandas_makes_of_the_table_is_shown_as_it_is(filled):
    table = filled.run("%collections")
    assert "groups" in repr(table[["groups"]])
    table["mine"] = 1
    assert "mine" in repr(table)
    assert "<th>mine</th>" in table._repr_html_()


def test_a_collection_that_is_scored_shows_its_reward_and_what_trains(filled):
    filled.run("%%reward rivers\nreturn float(trajectory.name.endswith('/0'))")
    table = filled.run("%collections")
    assert "0.50" in repr(table)
    assert "1 of 1" in repr(table)
    assert "not scored" in repr(table)
    assert table.loc["rivers", "trains"] == 1


def test_what_is_deleted_comes_back_as_the_line_says(filled, capsys):
    assert list(filled.run("%collections --delete capitals").index) == ["rivers"]
    message = capsys.readouterr().out.splitlines()[0]
    assert message == "deleted capitals, capitals:1; undo: %collections --restore capitals"
    assert filled.error("%group capitals/0").startswith("NotFoundError")
    capsys.readouterr()
    assert list(filled.run(message.partition("undo: ")[2]).index) == ["capitals", "rivers", "capitals:1"]
    message = capsys.readouterr().out.splitlines()[0]
    assert message == "restored capitals, capitals:1; undo: %collections --delete capitals"


def test_a_rename_is_undone_as_the_line_says(filled, capsys):
    assert list(filled.run("%collections --rename capitals cities").index) == ["cities", "rivers", "cities:1"]
    message = capsys.readouterr().out.splitlines()[0]
    assert message == "renamed capitals to cities; undo: %collections --rename cities capitals"
    assert list(filled.run(message.partition("undo: ")[2]).index) == ["capitals", "rivers", "capitals:1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--delete nobody", "NotFoundError: there is no collection 'nobody'\n  -> %collections lists them"),
        ("--restore rivers", "NotFoundError: no collection 'rivers' is deleted\n"),
        ("--rename capitals rivers", "ConflictError: there is a collection 'rivers' already\n  -> another name"),
        ("--rename capitals a/b", "InputError: 'a/b' is not a valid collection name"),
    ],
)
def test_what_cannot_be_done_changes_nothing(filled, line, message):
    assert filled.error(f"%collections {line}").startswith(message)
    assert list(filled.run("%collections").index) == ["capitals", "rivers", "capitals:1"]


@pytest.mark.parametrize(
    "call",
    [
        lambda lab: lab.delete(None),
        lambda lab: lab.restore(5),
        lambda lab: lab.rename(None, "x"),
        lambda lab: lab.rename("capitals", None),
        lambda lab: lab.files.export("capitals", None),
        lambda lab: lab.files.import_(None),
        lambda lab: lab.collections(5),
        lambda lab: lab.collection(None),
    ],
)
def test_what_is_no_text_is_refused_in_words(session, call):
    session.chat("capitals", "Hello", max_tokens=2)
    with pytest.raises(InputError) as refused:
        call(session)
    assert refused.value.hint
