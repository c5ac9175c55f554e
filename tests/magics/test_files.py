"""%export, %import and %logprobs as a user types them."""

import gzip
import json

import pytest

CHAT = "%%chat capitals -n 4 --over countries --max-tokens 8 --seed 1\nCapital of {{country}}?"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Files are named as seen from the notebook's folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_collection_goes_to_a_file_and_back(notebook, folder):
    sampled = notebook.run(CHAT)
    done = notebook.run("%export capitals a.jsonl -o done")
    assert repr(done) == "8 trajectories in 2 groups -> a.jsonl (jsonl)"
    assert notebook["done"] is done
    again = notebook.run("%import a.jsonl copy -o again")
    assert notebook["again"] is again
    assert again.name == "copy"
    assert [t.items for t in again.trajectories] == [t.items for t in sampled.trajectories]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet", "a.jsonl --format art --overwrite"])
def test_every_format_comes_back_as_it_was(notebook, name):
    sampled = notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn float(len(answer))")
    notebook.run(f"%export capitals {name}")
    again = notebook.run(f"%import {name.split()[0]} copy")
    assert [(t.items, t.reward) for t in again.trajectories] == [(t.items, t.reward) for t in sampled.trajectories]


def test_the_name_of_a_file_may_have_spaces(notebook, folder):
    notebook.run(CHAT)
    notebook.run('%export capitals "two words.jsonl"')
    assert (folder / "two words.jsonl").exists()
    assert notebook.run("%import 'two words.jsonl'").name == "capitals"


def test_a_file_of_several_collections_gives_a_list(notebook):
    notebook.run(CHAT)
    notebook.run(CHAT)
    notebook.run("%export capitals:1 capitals a.jsonl")
    assert [each.name for each in notebook.run("%import a.jsonl")] == ["capitals:3", "capitals"]


def test_the_best_answers_become_fine_tuning_messages(notebook, folder):
    notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn float(len(answer))")
    notebook.run("%export capitals best.jsonl --format openai --best --min-reward 1")
    lines = [json.loads(line) for line in (folder / "best.jsonl").read_text().splitlines()]
    assert [line["messages"][0]["content"] for line in lines] == ["Capital of France?", "Capital of Peru?"]


def test_messages_from_elsewhere_train_after_one_line(notebook, folder):
    ask = {"role": "user", "content": "Hello"}
    chats = [{"messages": [ask, {"role": "assistant", "content": a}], "want": "fox"} for a in ("fox", "dog")]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    notebook.run("%import chats.jsonl greetings --logprobs")
    notebook.run('%%reward greetings\nreturn float(answer == row["want"])')
    assert notebook.run("%%train greetings").status == "succeeded"
    assert notebook.run("%logprobs greetings:1").name == "greetings"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%export capitals", "InputError: no collection is given\n  -> %export NAME FILE"),
        ("%export nobody a.jsonl", "NotFoundError: there is no collection 'nobody'"),
        ("%import nothing.jsonl", "NotFoundError: there is no file nothing.jsonl"),
        ("%import bad.jsonl sums", "InputError: bad.jsonl, line 2: messages.0.role: role must be one of"),
        ("%import", "InputError: the following arguments are required: file\n  -> %import? shows the options"),
        (
            "%import bad.jsonl sums --format xml",
            "InputError: unknown format 'xml'\n  -> --format jsonl|parquet|openai|art",
        ),
        ("%logprobs nobody", "NotFoundError: there is no collection 'nobody'"),
    ],
)
def test_what_goes_wrong_is_said_in_two_lines(notebook, folder, cell, message):
    good = {"messages": [{"role": "user", "content": "a"}]}
    (folder / "bad.jsonl").write_text(f"{json.dumps(good)}\n" + '{"messages": [{"role": "usr"}]}')
    assert notebook.error(cell).startswith(message)
    assert notebook.run("%collections").empty


@pytest.mark.parametrize(
    ("name", "place"), [("bomb.jsonl.gz", "bomb.jsonl.gz, line 2: "), ("bomb.json.gz", "bomb.json.gz: ")]
)
def test_a_small_file_that_would_fill_the_memory_is_refused_in_words(notebook, tmp_path, name, place):
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(b"\n")
        for _ in range(129):
            file.write(b" " * (1 << 20))
    assert (tmp_path / name).stat().st_size < 1 << 20
    message = notebook.error(f"%import {tmp_path / name} bomb")
    assert f"InputError: {place}more than 128 MiB in one piece" in message
    assert "JSON lines" in message


def test_a_file_is_sampled_over_by_its_name_and_a_variable_comes_first(notebook, folder):
    (folder / "my data.csv").write_text("country\nFrance\nPeru\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "rows.jsonl").write_text('{"country": "Chad"}\n{"country": ')
    notebook.run("%%chat a --over 'my data.csv' --max-tokens 2\n{{country}}?")
    assert [group.row["country"] for group in notebook.lab.collection("a").groups] == ["France", "Peru"]
    notebook.run("%%chat b --over sub/rows.jsonl --limit 1 --max-tokens 2\n{{country}}?")
    assert [group.row["country"] for group in notebook.lab.collection("b").groups] == ["Chad"]
    notebook.run("class sub: jsonl = [{'country': 'Japan'}]")
    (folder / "sub.jsonl").write_text('{"country": "no"}')
    notebook.run("%%chat c --over sub.jsonl --prompt-column country --max-tokens 2\n")
    assert notebook.lab.collection("c").trajectories[0].prompt == "Japan"
    error = notebook.error("%%chat d --over sub/rows.jsonl\n{{country}}?")
    assert error.startswith("InputError: rows.jsonl, line 2, column 13: not JSON")
    assert "there is no file nothing.csv" in notebook.error("%%chat d --over nothing.csv\n{{country}}?")
    for expression in ("nothing", f"nothing[{'0' * 300}]"):  # the second is too long to be the name of a file
        message = notebook.error(f"%%chat d --over {expression}\n{{{{country}}}}?")
        assert "there is no variable 'nothing'" in message
    assert "limit must be an integer" in notebook.error("%%chat d --over countries --limit 0\n{{country}}?")
    assert "cannot take --limit and --prompt-column" in notebook.error(
        "%%chat a --resume --limit 1 --prompt-column x\n"
    )


MIXES = {
    "%export lab/x@1": ("a checkpoint needs the folder to write it to", "%export lab/x@1 --to FOLDER"),
    "%export x --merged": ("a checkpoint needs the folder", "%export x --to FOLDER --merged"),
    "%export lab/x@1 --push a/b": ("a checkpoint needs the folder", "%export lab/x@1 --to FOLDER --push a/b"),
    "%export lab/x@1 --to d --best": (
        "--best is of collections, and --to writes a checkpoint",
        "%export lab/x@1 --to d",
    ),
    "%export lab/x@1 y --to d": ("--to writes one checkpoint, not lab/x@1 y", "%export lab/x@1 --to d"),
}


@pytest.mark.parametrize("cell", MIXES)
def test_options_of_files_and_of_checkpoints_are_not_mixed(notebook, cell):
    message, hint = MIXES[cell]
    assert message in notebook.error(cell)
    assert f"-> {hint}" in notebook.error(cell)


def test_a_checkpoint_is_written_to_a_folder(notebook, tmp_path):
    notebook.run("%model")
    done = notebook.run(f"%export lab/practice@0 --to '{tmp_path / 'the best'}'")
    assert (tmp_path / "the best" / "adapter_config.json").exists()
    assert repr(done).startswith("lab/practice@0: adapter, ")
