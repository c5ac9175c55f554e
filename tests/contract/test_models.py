"""Registering models and listing checkpoints, as a client sees it."""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date

import pytest

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import NotFoundError, RefusedError
from rolloutlab.policy.model import load_policy
from rolloutlab.settings import ModelSettings
from rolloutlab.store.sqlite import Database
from tests.policies import emphatic


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


def test_a_registered_model_has_checkpoint_zero_at_once(service):
    model = service.register()
    listed = service.call("GET", f"/v1/preview/models/{model.id}/checkpoints")
    assert [checkpoint["step"] for checkpoint in listed["data"]] == [0]
    assert listed["object"] == "list"
    assert listed["has_more"] is False


def test_registering_again_returns_the_existing_one_only_when_asked(service):
    first = service.register()
    assert service.register().id == first.id
    with pytest.raises(RefusedError, match="the model lab/first exists"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "first"})


def test_many_who_register_one_name_at_once_get_one_model(service):
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: service.register("same").id, range(24)))
    assert len(ids) == 1
    assert len(list((service.folder / "models").iterdir())) == 1


def test_a_chat_reads_the_row_of_its_model_once(service, monkeypatch):
    service.register()
    read, statements = Database.read, []
    monkeypatch.setattr(Database, "read", lambda self, sql, *values: statements.append(sql) or read(self, sql, *values))
    service.chat(model="lab/first")
    assert len([sql for sql in statements if "FROM models" in sql]) == 1


def test_another_base_model_than_the_served_one_is_refused(service):
    with pytest.raises(RefusedError, match="'other' is not served here; this service serves 'tiny'"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "x", "base_model": "other"})


def test_a_name_with_a_slash_is_refused_at_its_place(service):
    with pytest.raises(RefusedError, match=r"422 body\.name"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "a/b"})


def test_checkpoints_of_an_unknown_model_are_not_found(service):
    with pytest.raises(NotFoundError, match="there is no model with id"):
        service.call("GET", "/v1/preview/models/00000000-0000-4000-8000-000000000000/checkpoints")


def test_a_model_of_another_base_policy_is_neither_listed_nor_answered_nor_trained(start, policy, body):
    service = start()
    model = service.register()
    other = replace(policy, base=copy.deepcopy(policy.base))
    other.base.get_input_embeddings().weight.data += 1
    service = start(other)
    assert [card["id"] for card in service.call("GET", "/v1/models")["data"]] == ["tiny"]
    with pytest.raises(RefusedError, match=r"409 lab/first was trained on another base policy") as refused:
        service.chat(model="lab/first")
    assert "%model lab/tiny" in str(refused.value)
    service.register("tiny")
    assert service.chat(model="lab/tiny").model == "lab/tiny@0"
    with pytest.raises(RefusedError, match=r"409 lab/first was trained on another base policy"):
        service.train(CreateTrainingJob.model_validate(body(model.id)))
    assert not service.jobs.busy()
    assert start().chat(model="lab/first").model == "lab/first@0"


@pytest.mark.parametrize("base", ["base", "NULL"], ids=["today", "of a version without a base"])
def test_a_model_with_other_adapters_is_refused_with_what_to_type(start, tiny_policy, base):
    other = load_policy(str(tiny_policy), ModelSettings(lora_rank=4, lora_alpha=4))
    service = start()
    service.register()
    with service.database.write() as connection:
        connection.execute(f"UPDATE models SET base = {base}")
    service = start(other)
    assert [card["id"] for card in service.call("GET", "/v1/models")["data"]] == ["tiny"]
    served = "the default settings, and this service runs with --lora-rank=4 --lora-alpha=4"
    with pytest.raises(RefusedError, match=f"409 lab/first was made with {served}") as refused:
        service.chat(model="lab/first")
    assert "rolloutlab serve --policy tiny" in str(refused.value)
    assert start().chat(model="lab/first").model == "lab/first@0"


def test_a_model_keeps_to_the_adapters_that_it_was_made_with(start, tiny_policy, body):
    other = load_policy(str(tiny_policy), ModelSettings(lora_rank=4, lora_targets="q_proj"))
    service = start(other)
    model = service.register()
    job = service.train(CreateTrainingJob.model_validate(body(model.id)))
    assert service.ended(job)[-1].type == "training_ended"
    assert service.chat(model="lab/first").model == "lab/first@1"
    service = start()
    with pytest.raises(RefusedError, match="made with --lora-rank=4 --lora-targets=q_proj") as refused:
        service.chat(model="lab/first")
    assert "rolloutlab serve --policy tiny --lora-rank=4 --lora-targets=q_proj" in str(refused.value)
    assert start(other).chat(model="lab/first").model == "lab/first@1"


def test_a_model_keeps_to_the_date_that_its_template_prints(start, tiny_policy, tmp_path):
    """Its prompts are then the same for the sampler and the trainer, on any day and after any restart."""
    folder = tmp_path / "dated"
    shutil.copytree(tiny_policy, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + template.read_text())
    older, dated = (
        emphatic(load_policy(str(folder), ModelSettings(template_date=day))) for day in (None, date(2025, 1, 31))
    )
    asked = {"role": "user", "content": "what day is it?"}
    policies = {"26 Jul 2024": older, "31 Jan 2025": dated}
    for day, policy in policies.items():
        service = start(policy)
        model = service.register(day[-4:])
        choices = service.chat(messages=[asked], model=f"lab/{day[-4:]}", n=2, max_tokens=6).choices
        group = {
            "trajectories": [
                {"messages_and_choices": [asked, choice.to_wire()], "reward": float(i)}
                for i, choice in enumerate(choices)
            ]
        }
        job = CreateTrainingJob.model_validate({"model_id": str(model.id), "trajectory_groups": [group]})
        step = next(event.data for event in service.ended(service.train(job)) if event.type == "gradient_step")
        assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    with pytest.raises(
        RefusedError, match=r"409 lab/2024 was made with the default settings, and .* --template-date=2025"
    ):
        service.chat(model="lab/2024")
    with pytest.raises(RefusedError, match="rolloutlab serve --policy dated --template-date=2025-01-31"):
        start(older).chat(model="lab/2025")


def test_a_date_that_no_template_prints_binds_no_model(tiny_policy):
    assert load_policy(str(tiny_policy), ModelSettings(template_date=date(2025, 1, 31))).bound_options == ()


def test_a_model_of_another_entity_is_listed_under_a_name_that_can_be_sampled(service):
    service.call("POST", "/v1/preview/models", json={"entity": "team", "project": "lab", "name": "first"})
    name = service.call("GET", "/v1/models")["data"][1]["id"]
    assert name == "wandb-artifact:///team/lab/first"
    assert service.chat(model=name).choices


def test_chats_while_a_model_is_deleted_are_answered_or_not_found(service):
    def chat():
        try:
            return service.chat(model="lab/first", max_tokens=1).model
        except NotFoundError:
            return "not found"

    with ThreadPoolExecutor() as pool:
        for _ in range(5):
            model = service.register()
            answers = [pool.submit(chat) for _ in range(8)]
            service.call("DELETE", f"/v1/preview/models/{model.id}")
            assert {answer.result() for answer in answers} <= {"lab/first@0", "not found"}
