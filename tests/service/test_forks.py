"""A model that is made from a checkpoint of another is whole or not there, and trains as the other would have."""

import errno
import json
import shutil
import threading
from uuid import uuid4

import pytest

from rolloutlab.api import training
from rolloutlab.api.wire.training import RegisterModel
from rolloutlab.errors import NotFoundError, RefusedError, ServiceError
from rolloutlab.service import model_registry
from rolloutlab.service.model_registry import Registry

MODELS, JOBS, LOST = "/v1/preview/models", "/v1/preview/training-jobs", "/v1/preview/lost-checkpoints"
OWN = {"checkpoint.json", "sha256.json"}
"""Files of a checkpoint that the service writes."""


@pytest.fixture
def service(start, trained):
    """Its model lab/first has the checkpoints 0, 1 and 2."""
    trained()
    return start()


@pytest.fixture
def fork(service):
    """Makes lab/second from a checkpoint, by default step 2 of lab/first."""

    def make(source="lab/first@2", name="second", **options):
        asked = {"project": "lab", "name": name, "return_existing": True, "from_checkpoint": source, **options}
        wanted = RegisterModel.model_validate(asked)
        return service.http.run(training.register_model(service.http, service.address, wanted))

    return make


def files(service, model, step, *, own=False):
    folder = service.folder / "models" / str(model.id) / str(step)
    return {path.name: path.read_bytes() for path in folder.iterdir() if own or path.name not in OWN}


def checkpoints(service, model):
    return service.call("GET", f"{MODELS}/{model.id}/checkpoints")["data"]


def names(service):
    return [card["id"] for card in service.call("GET", "/v1/models")["data"]]


def folders(service):
    return sorted(path.name for path in (service.folder / "models").iterdir() if not path.name.startswith("."))


def test_it_has_the_one_checkpoint_under_its_number_with_its_tensors_and_metrics(service, fork):
    first, second = service.register(), fork()
    [only] = checkpoints(service, second)
    assert only["step"] == 2
    assert only["metrics"] == checkpoints(service, first)[2]["metrics"] != {}
    assert files(service, second, 2) == files(service, first, 2)
    assert {"adapter_model.safetensors", "optimizer.safetensors"} <= files(service, second, 2).keys()
    answers = [service.chat(model=name, seed=1).choices[0].logprobs for name in ("lab/first", "lab/second")]
    assert answers[0] == answers[1]
    assert service.chat(model="lab/second").model == "lab/second@2"


def test_its_job_makes_the_next_step_bit_for_bit_as_the_other_model_would(service, fork, body):
    first, second = service.register(), fork()
    for model in (first, second):
        job = service.call("POST", JOBS, json=body(model.id))["id"]
        assert service.ended(job)[-1].data == {"step": 3}
        assert service.call("GET", f"{JOBS}/{job}")["step"] == 2
    assert files(service, second, 3) == files(service, first, 3)
    assert files(service, second, 3) != files(service, second, 2)
    assert [each["step"] for each in checkpoints(service, first)] == [0, 1, 2, 3]


def test_a_penalty_takes_the_base_or_a_step_that_it_has(service, fork, body):
    second = fork()
    for step, taken in ((0, True), (2, True), (1, False)):
        config = {"kl_penalty_coef": 0.1, "kl_ref_step": step}
        job = body(second.id, experimental_config=config)
        if taken:
            assert service.ended(service.call("POST", JOBS, json=job)["id"])[-1].type == "training_ended"
        else:
            with pytest.raises(RefusedError, match="there is no checkpoint 1 of this model"):
                service.call("POST", JOBS, json=job)


def test_lists_and_answers_name_what_it_was_made_from_and_what_that_was_made_from(service, fork):
    first, second = service.register(), fork()
    third = fork(f"{second.id}@2", "third")
    assert [str(each) for each in third.made_from] == ["lab/second@2", "lab/first@2"]
    assert [each.model_id for each in third.made_from] == [second.id, first.id]
    cards = {card["id"]: card.get("made_from") for card in service.call("GET", "/v1/models")["data"]}
    assert cards == {"tiny": None, "lab/first": None, "lab/second": "lab/first@2", "lab/third": "lab/second@2"}
    assert first.made_from is None
    assert service.call("GET", "/v1/preview/engine")["forks"] is True


@pytest.mark.parametrize("source", ["lab/first", "lab/first@latest", "lab/first@step2"])
def test_every_form_of_a_name_is_read(fork, source):
    assert str(fork(source).made_from[0]) == "lab/first@2"


def test_a_model_that_was_made_from_it_goes_on_and_another_is_refused_with_a_free_name(service, fork, body):
    second = fork()
    service.ended(service.call("POST", JOBS, json=body(second.id))["id"])
    assert fork().id == second.id
    with pytest.raises(RefusedError, match="lab/second exists and was made from lab/first@2, not from lab/first@1"):
        fork("lab/first@1")
    service.register("second-2")
    with pytest.raises(RefusedError) as refused:
        fork("lab/first@1")
    assert "%model lab/second-3 --from lab/first@1" in str(refused.value)
    with pytest.raises(RefusedError, match="409 lab/first exists and began at the base policy, not from lab/second@3"):
        fork("lab/second", "first")
    with pytest.raises(RefusedError, match="the model lab/second exists"):
        fork(return_existing=False)
    assert service.register("second").id == second.id


def test_it_goes_on_once_its_source_is_deleted_and_is_told_from_a_new_model_of_that_name(service, fork):
    second = fork()
    service.call("DELETE", f"{MODELS}/{service.register().id}")
    assert fork().id == second.id
    assert service.chat(model="lab/second").model == "lab/second@2"
    with pytest.raises(NotFoundError, match="there is no model 'lab/first@1'"):
        fork("lab/first@1")
    service.register()
    with pytest.raises(NotFoundError, match="has no checkpoint 1"):
        fork("lab/first@1")


def test_a_source_that_does_not_exist_is_refused_and_nothing_is_made(service, fork):
    before = names(service), folders(service)
    for source, why in {
        "lab/first@7": "lab/first has no checkpoint 7; it has 0 to 2",
        "lab/frist@2": "there is no model 'lab/frist@2'; there are tiny, lab/first",
        f"{uuid4()}@2": "there is no model with id",
        "": "there is no model ''",
    }.items():
        with pytest.raises(NotFoundError, match=why):
            fork(source)
    with pytest.raises(RefusedError, match="'tiny' is the base policy, with which every new model begins"):
        fork("tiny")
    assert (names(service), folders(service)) == before


def test_a_damaged_source_is_refused_with_what_to_type_and_nothing_is_made(service, fork):
    first = service.register()
    before = folders(service)
    (service.folder / "models" / str(first.id) / "2" / "optimizer.safetensors").write_bytes(b"x")
    with pytest.raises(ServiceError, match="its checksum differs") as damaged:
        fork()
    assert "%models --delete lab/first@2" in str(damaged.value)
    assert names(service) == ["tiny", "lab/first"]
    assert folders(service) == before
    assert str(fork("lab/first@1").made_from[0]) == "lab/first@1"


def test_a_source_that_is_deleted_meanwhile_is_not_found_and_nothing_is_made(service, fork, monkeypatch):
    first, copy = service.register(), model_registry.copy_files

    def delete_first(source, draft):
        shutil.rmtree(source)
        with service.database.write() as connection:
            connection.execute("DELETE FROM checkpoints WHERE step = 2")
        copy(source, draft)

    monkeypatch.setattr(model_registry, "copy_files", delete_first)
    with pytest.raises(NotFoundError, match="the checkpoint 2 has just been deleted"):
        fork()
    assert names(service) == ["tiny", "lab/first"]
    assert folders(service) == [str(first.id)]


@pytest.mark.parametrize("full", ["copy", "seal"])
def test_on_a_full_disk_nothing_is_made(service, fork, monkeypatch, full):
    first = service.register()

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"rolloutlab.policy.checkpoints.{'shutil.copyfileobj' if full == 'copy' else 'flush'}", refuse)
        with pytest.raises(ServiceError, match=r"cannot be written: .*No space left on device"):
            fork()
    assert names(service) == ["tiny", "lab/first"]
    assert folders(service) == [str(first.id)]
    assert str(fork().made_from[0]) == "lab/first@2"


class Killed(BaseException):
    """In place of the end of the process."""


ASKED = {"project": "lab", "name": "second", "from_checkpoint": "lab/first@2"}


@pytest.fixture
def kill(service, monkeypatch):
    """Ends the service while it makes lab/second: in the middle of a file, or before its rows are written."""
    write, own = service.database.write, threading.current_thread()

    def end(*given):
        if threading.current_thread() is own:  # the thread of the jobs goes on to the end of the process
            raise Killed
        return write(*given)

    def copy_a_part(_, draft):
        (draft / "optimizer.safetensors").write_bytes(b"half")
        raise Killed

    def make(*, copying):
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "discard", lambda *_: None)  # nothing is tidied after a kill
            if copying:
                patch.setattr(model_registry, "copy_files", copy_a_part)
                patch.setattr("shutil.rmtree", lambda *_, **__: None)
            else:
                patch.setattr(service.database, "write", end)
            with pytest.raises(Killed):
                service.jobs._registry.register(RegisterModel.model_validate(ASKED))

    return make


def test_a_kill_while_it_is_copied_leaves_nothing(start, service, kill):
    first = service.register()
    kill(copying=True)
    assert len(list((service.folder / "models").glob("*/.2-*/optimizer.safetensors"))) == 1
    service = start()
    assert names(service) == ["tiny", "lab/first"]
    assert folders(service) == [str(first.id)]
    assert service.call("GET", LOST)["data"] == []


def test_a_kill_before_it_is_listed_leaves_a_checkpoint_that_can_be_listed_again(start, service, kill):
    kill(copying=False)
    service = start()
    assert names(service) == ["tiny", "lab/first"]
    [lost] = service.call("GET", LOST)["data"]
    assert (lost["model"], lost["step"]) == ("lab/second", 2)
    service.call("POST", f"{LOST}/recover")
    card = service.call("GET", "/v1/models")["data"][-1]
    assert (card["id"], card["made_from"], card["newest_step"]) == ("lab/second", "lab/first@2", 2)


def test_it_comes_back_with_what_it_was_made_from_once_the_database_is_lost(start, service, fork, body):
    second = fork()
    service.ended(service.call("POST", JOBS, json=body(second.id))["id"])
    service.stop()
    for path in service.folder.glob("service.db*"):
        path.unlink()
    shutil.rmtree(service.folder / "models" / str(second.id) / "2")  # its later checkpoint says it, too
    service = start(start_empty=True)
    service.call("POST", f"{LOST}/recover")
    cards = {card["id"]: card for card in service.call("GET", "/v1/models")["data"]}
    assert cards["lab/second"]["made_from"] == "lab/first@2"
    assert cards["lab/second"]["newest_step"] == 3
    job = service.call("POST", JOBS, json=body(second.id))["id"]
    assert service.ended(job)[-1].data == {"step": 4}


def test_the_files_of_a_model_that_began_at_the_base_say_no_source(service):
    about = json.loads(files(service, service.register(), 0, own=True)["checkpoint.json"])
    assert about["made_from"] is None
