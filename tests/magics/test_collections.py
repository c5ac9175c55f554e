"""%collections: the table, and keeping house."""

import pytest

from rolloutlab.errors import InputError


@pytest.fixture
def filled(notebook):
    for name in ("capitals", "rivers", "capitals"):
        notebook.run(f"%%chat {name} -n 2 --max-tokens 2\nHello")
    return notebook


def test_a_pattern_lists_some(filled):
    assert list(filled.run("%collections 'cap*'").index) == ["capitals", "capitals:1"]
    assert list(filled.run("%collections r*").index) == ["rivers"]
    assert list(filled.run("%collections").index) == ["capitals", "rivers", "capitals:1"]


def test_the_table_says_what_is_there(filled):
    row = filled.run("%collections -o table").loc["rivers"]
    assert (row["groups"], row["trajectories"], row["missing"], row["scored"]) == (1, 2, 0, 0)
    assert {"prompt_tokens", "completion_tokens"} <= set(filled["table"].columns)


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
        lambda lab: lab.export("capitals", None),
        lambda lab: lab.import_(None),
        lambda lab: lab.collections(5),
        lambda lab: lab.group(None),
        lambda lab: lab.collection(None),
    ],
)
def test_what_is_no_text_is_refused_in_words(session, call):
    session.chat("capitals", "Hello", max_tokens=2)
    with pytest.raises(InputError) as refused:
        call(session)
    assert refused.value.hint
