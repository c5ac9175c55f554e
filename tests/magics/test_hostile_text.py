"""Names that a file, a client or a service brings along are seen wherever they are printed, and act nowhere."""

import json
import re

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.store.models import Score

ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\u202e\u2066"
CALL = {"id": "1", "type": "function", "function": {"name": f"f{EVIL}", "arguments": f"{{}}{EVIL}"}}


def acting(result):
    """What acts of all that is shown of a result."""
    shown = [repr(result), str(result), result._repr_html_() if hasattr(result, "_repr_html_") else ""]
    return [ascii(text[max(0, matches.start() - 40) :][:80]) for text in shown for matches in ACTS.finditer(text)]


@pytest.fixture
def imported(notebook, tmp_path):
    """A notebook into which conversations were imported, in which all names are hostile."""
    line = {
        "messages_and_choices": [
            {"role": "user", "content": f"hi{EVIL}"},
            {"role": "assistant", "content": f"x{EVIL}", "tool_calls": [CALL]},
        ],
        "model": f"m{EVIL}",
        "source": f"s{EVIL}",
        "row": {f"c{EVIL}": f"v{EVIL}"},
        "metadata": {f"z{EVIL}": f"y{EVIL}"},
    }
    lines = [json.dumps(line | {"reward": reward, "components": {f"k{EVIL}": reward}}) for reward in (0.0, 1.0)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    notebook.run(f"%import {tmp_path / 'a.jsonl'} a")
    scores = [Score(notebook.lab.collection("a").trajectories[0], 0.5, note=f"n{EVIL}")]
    notebook.lab.store.rewards.give(scores, "tool", who=f"client{EVIL}")
    return notebook


@pytest.mark.parametrize(
    "cell",
    [
        "%collections",
        "%group a/0",
        "%rewards a",
        "%rewards a --history",
        "%search hi",
        "%search hi --select model,source",
        "%search --status",
        "%%train a --dry-run\nlearning_rate: 1e-3",
        "%%train a --form",
        "lab_.collection('a')",
        "%branch a/0/0",
    ],
)
def test_what_was_imported_acts_on_no_terminal(imported, capsys, cell):
    imported.shell.user_ns["lab_"] = imported.lab
    assert not acting(imported.run(cell))
    assert not ACTS.search(capsys.readouterr().out)


def test_errors_that_quote_it_do_not_act_either(imported):
    condition = f"model == 'm{EVIL}' and 1"
    with pytest.raises(Exception, match="is not a condition") as error:
        imported.lab.search("hi", where=condition)
    assert not ACTS.search(str(error.value) + "\n".join(error.value._render_traceback_()))


def test_what_a_service_calls_its_models_acts_on_no_terminal(notebook, session):
    card = {"id": f"m{EVIL}", "object": "model", "created": 0, "owned_by": "x", "base_model": f"b{EVIL}"}
    refusal = httpx.Response(400, json={"error": {"message": f"no{EVIL}"}})
    answers = {"/v1/models": httpx.Response(200, json={"object": "list", "data": [card]})}
    session._connector.http = HttpClient(
        httpx.MockTransport(lambda request: answers.get(request.url.path, refusal)), backoff=0
    )
    for cell in ("%connect", "%connect https://train.example", "%models"):
        result = notebook.shell.run_cell(cell, store_history=False)
        error = result.error_in_exec
        assert not acting(result.result)
        assert not ACTS.search("\n".join(error._render_traceback_()) if error else "")
    session._connector.http.close()
