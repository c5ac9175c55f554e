"""`%models`: what is damaged or lost is told there, with what to type, and typing it helps."""

import hashlib
import json

import pytest


@pytest.fixture
def service(start, body):
    """Its model lab/first has a step 1 whose files are not there, and a step 7 that the database does not list."""
    service = start()
    model = service.register()
    service.ended(service.call("POST", "/v1/preview/training-jobs", json=body(model.id))["id"])
    service.stop()
    folder = service.folder / "models" / str(model.id)
    (folder / "1").rename(folder / "7")
    as_step_7(folder / "7")
    return start()


def as_step_7(checkpoint):
    """The checkpoint itself is of step 7 too: what is recorded in it has to agree with the name of its folder."""
    about, sums = checkpoint / "checkpoint.json", checkpoint / "sha256.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"step": 7}))
    digest = hashlib.sha256(about.read_bytes()).hexdigest()
    sums.write_text(json.dumps(json.loads(sums.read_text()) | {about.name: digest}))


@pytest.fixture
def printed(notebook, capsys):
    """The lines that a cell prints before the table that is its value."""

    def run(cell):
        capsys.readouterr()
        notebook.run(cell)
        return capsys.readouterr().out.partition("Out[")[0].splitlines()

    return run


def test_models_tells_of_lost_checkpoints_until_they_are_listed_again(printed, notebook):
    response = printed("%models")
    assert response[0].endswith(" bytes) in the service's folder models/.lost, which its database does not list:")
    assert response[1].startswith("  lab/first@7  ")
    assert response[2] == "  -> %models --recover lists them again; %models --purge removes them"
    assert printed("%models --delete lab/first@1") == ["model lab/first on tiny: checkpoint 0", *response]
    assert printed("%models --recover")[:1] == ["listed again: 1 checkpoint"]
    assert printed("%models -o listed") == []
    assert notebook["listed"].loc["lab/first", "newest"] == 7
    notebook.run("%%chat capitals -m lab/first@7 --max-tokens 2\nCapital of Peru?")


def test_what_is_purged_is_told_and_gone(printed):
    assert printed("%models --purge")[0].startswith("removed 1 checkpoint (")
    assert printed("%models --purge") == ["no checkpoint was removed"]
    assert printed("%models") == []


def test_a_model_is_made_from_a_checkpoint_of_another(printed, notebook):
    printed("%models --recover")
    notebook.run("%model lab/second --from lab/first@7 -o second")
    assert repr(notebook["second"]) == "model lab/second from lab/first@7 on tiny: checkpoint 7"
    assert notebook.run("%models").loc["lab/second", "made_from"] == "lab/first@7"
    [sampled] = notebook.run("%%chat capitals --max-tokens 2\nCapital of Peru?").trajectories
    assert (sampled.model, sampled.step) == ("lab/second", 7)
    refused = notebook.error("%model lab/second --from lab/first@0")
    assert "409 lab/second exists and was made from lab/first@7, not from lab/first@0" in refused
    assert "(%model lab/second-2 --from lab/first@0)" in refused
