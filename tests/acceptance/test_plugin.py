"""What users of another package's plug-ins type: `make acceptance-plugin` runs it where that one is installed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rolloutlab.errors import InputError
from rolloutlab.magics import register
from rolloutlab.magics.completion import Matcher
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Iterator[InteractiveShell]:
    """A notebook whose embedded service runs the engine of the plug-in."""
    session = Session(Settings(home=tmp_path_factory.mktemp("lab"), linger=1.0, model=ModelSettings(engine="sharp")))
    shell = InteractiveShell()
    register(shell, session)
    shell.user_ns["lab"] = session
    yield shell
    session.service("stop")
    session.close()


def run(shell: InteractiveShell, cell: str) -> Any:
    result = shell.run_cell(cell, store_history=False)
    result.raise_error()
    return result.result


def test_its_engine_samples_and_trains_below_the_service(shell, capsys):
    run(shell, "%%chat sums -n 4\n2 + 2?")
    assert len({each.answer for each in run(shell, "lab.collection('sums').trajectories")}) == 1
    run(shell, "%connect")
    assert "engine sharp" in capsys.readouterr().out
    run(shell, "%%reward sums\nreturn float(trajectory.name.endswith('0'))")
    assert run(shell, "%%train sums\nlearning_rate: 1e-5").status == "succeeded"


def test_its_environment_plays_a_cell_and_is_completed(shell):
    run(shell, "%%chat guesses -n 2 --env guess:10 --max-turns 3 --max-tokens 8\n")
    (group,) = {each.name.rpartition("/")[0] for each in run(shell, "lab.collection('guesses').trajectories")}
    assert group == "guesses/0"
    assert Matcher(shell).complete("%%chat x --env guess:", 0, 21)[1] == ["guess:10", "guess:100", "guess:1000"]


def test_its_signature_scores_a_collection(shell, capsys):
    run(shell, "rows = [{'target': 'Paris'}]\ndef exact(guess, gold): return float(gold in guess)")
    run(shell, "%%chat capitals -n 2 --over rows\nSay {{target}}.")
    run(shell, "%%reward capitals --with exact\n")
    assert "looks like a reward function of the example" in capsys.readouterr().out
    assert all(each.reward is not None for each in run(shell, "lab.collection('capitals').trajectories"))


def test_its_files_are_read_and_written(shell, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"dialogue": [["2 + 2?", "4"]], "score": 1.0}))
    run(shell, f"%import '{tmp_path / 'a.jsonl'}' dialogues")
    run(shell, f"%export dialogues '{tmp_path / 'b.jsonl'}' --format dialogues")
    assert json.loads((tmp_path / "b.jsonl").read_text()) == {"dialogue": [["2 + 2?", "4"]], "score": 1.0}


def test_its_collections_are_searched(shell, tmp_path):
    notes = [{"id": "a", "text": "the first", "stars": 3}, {"id": "b", "text": "the second", "stars": 5}]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, notes)))
    run(shell, f"%connect --search notes:{tmp_path / 'notes.jsonl'}")
    assert [hit.id for hit in run(shell, '%search --where "stars > 4"').hits] == ["b"]
    run(shell, "%connect --search lab")


def test_a_name_that_it_does_not_have_says_what_there_is(shell):
    with pytest.raises(InputError) as error:
        run(shell, "%%chat x --env guess:many\n")
    assert error.value.hint == "guess:100, the highest number"
