"""Training jobs: every constraint of the specification is broken once, and the refusal names the path in the body."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire import training
from rolloutlab.api.wire.training import CreateTrainingJob, ExperimentalTrainingConfig

TRAJECTORY = "trajectory_groups.0.trajectories.0"
ITEMS = f"{TRAJECTORY}.messages_and_choices"
HISTORY = f"{TRAJECTORY}.additional_histories.0"
CHOICE = f"{ITEMS}.6"
CONFIG = "experimental_config"

WRONG = {
    "string": [5, True, [], {}],
    "number": ["1", True, [], math.nan, math.inf, -math.inf],
    "integer": ["1", True, 1.5, math.nan],
    "boolean": ["true", 0, []],
    "array": ["x", 5, {}],
    "object": ["x", 5, []],
    "constant": ["robot", 5, [], True],
    "uuid": ["x", "", "12345678-1234-5678-1234-56781234567g", 5, True, []],
    "date-time": ["yesterday", "2026-02-30T12:00:00Z", "2026-01-31", 5, True],
    "string or array": [5, True, {}],
}

# Path in the body of `job`, and type, of every field that the specification requires and does not let be null
REQUIRED = {
    "model_id": "uuid",
    "trajectory_groups": "array",
    "trajectory_groups.0.trajectories": "array",
    f"{TRAJECTORY}.messages_and_choices": "array",
    f"{TRAJECTORY}.reward": "number",
    f"{HISTORY}.messages_and_choices": "array",
    f"{ITEMS}.0.role": "constant",
    f"{ITEMS}.0.content": "string or array",
    f"{ITEMS}.0.content.0.type": "constant",
    f"{ITEMS}.0.content.0.text": "string",
    f"{ITEMS}.1.role": "constant",
    f"{ITEMS}.1.content": "string or array",
    f"{ITEMS}.1.content.0.type": "constant",
    f"{ITEMS}.1.content.0.text": "string",
    f"{ITEMS}.2.role": "constant",
    f"{ITEMS}.2.content": "string or array",
    f"{ITEMS}.2.content.0.type": "constant",
    f"{ITEMS}.2.content.0.text": "string",
    f"{ITEMS}.2.content.1.type": "constant",
    f"{ITEMS}.2.content.1.image_url": "object",
    f"{ITEMS}.2.content.1.image_url.url": "string",
    f"{ITEMS}.2.content.2.type": "constant",
    f"{ITEMS}.2.content.2.input_audio": "object",
    f"{ITEMS}.2.content.2.input_audio.data": "string",
    f"{ITEMS}.2.content.2.input_audio.format": "constant",
    f"{ITEMS}.2.content.3.type": "constant",
    f"{ITEMS}.2.content.3.file": "object",
    f"{ITEMS}.3.role": "constant",
    f"{ITEMS}.3.audio.id": "string",
    f"{ITEMS}.3.content.0.type": "constant",
    f"{ITEMS}.3.content.0.text": "string",
    f"{ITEMS}.3.content.1.type": "constant",
    f"{ITEMS}.3.content.1.refusal": "string",
    f"{ITEMS}.3.function_call.name": "string",
    f"{ITEMS}.3.function_call.arguments": "string",
    f"{ITEMS}.3.tool_calls.0.id": "string",
    f"{ITEMS}.3.tool_calls.0.type": "constant",
    f"{ITEMS}.3.tool_calls.0.function": "object",
    f"{ITEMS}.3.tool_calls.0.function.name": "string",
    f"{ITEMS}.3.tool_calls.0.function.arguments": "string",
    f"{ITEMS}.3.tool_calls.1.id": "string",
    f"{ITEMS}.3.tool_calls.1.type": "constant",
    f"{ITEMS}.3.tool_calls.1.custom": "object",
    f"{ITEMS}.3.tool_calls.1.custom.name": "string",
    f"{ITEMS}.3.tool_calls.1.custom.input": "string",
    f"{ITEMS}.4.role": "constant",
    f"{ITEMS}.4.content": "string or array",
    f"{ITEMS}.4.content.0.type": "constant",
    f"{ITEMS}.4.content.0.text": "string",
    f"{ITEMS}.4.tool_call_id": "string",
    f"{ITEMS}.5.role": "constant",
    f"{ITEMS}.5.name": "string",
    f"{CHOICE}.finish_reason": "constant",
    f"{CHOICE}.index": "integer",
    f"{CHOICE}.message": "object",
    f"{CHOICE}.message.role": "constant",
    f"{CHOICE}.message.annotations.0.type": "constant",
    f"{CHOICE}.message.annotations.0.url_citation": "object",
    f"{CHOICE}.message.annotations.0.url_citation.start_index": "integer",
    f"{CHOICE}.message.annotations.0.url_citation.end_index": "integer",
    f"{CHOICE}.message.annotations.0.url_citation.title": "string",
    f"{CHOICE}.message.annotations.0.url_citation.url": "string",
    f"{CHOICE}.message.audio.id": "string",
    f"{CHOICE}.message.audio.data": "string",
    f"{CHOICE}.message.audio.expires_at": "integer",
    f"{CHOICE}.message.audio.transcript": "string",
    f"{CHOICE}.message.function_call.name": "string",
    f"{CHOICE}.message.function_call.arguments": "string",
    f"{CHOICE}.message.tool_calls.0.id": "string",
    f"{CHOICE}.message.tool_calls.0.type": "constant",
    f"{CHOICE}.message.tool_calls.0.function": "object",
    f"{CHOICE}.message.tool_calls.0.function.name": "string",
    f"{CHOICE}.message.tool_calls.0.function.arguments": "string",
    f"{CHOICE}.logprobs.content.0.token": "string",
    f"{CHOICE}.logprobs.content.0.logprob": "number",
    f"{CHOICE}.logprobs.content.0.top_logprobs": "array",
    f"{CHOICE}.logprobs.content.0.top_logprobs.0.token": "string",
    f"{CHOICE}.logprobs.content.0.top_logprobs.0.logprob": "number",
    f"{CHOICE}.logprobs.refusal.0.token": "string",
    f"{CHOICE}.logprobs.refusal.0.logprob": "number",
    f"{CHOICE}.logprobs.refusal.0.top_logprobs": "array",
    f"{TRAJECTORY}.tools.0.type": "constant",
    f"{TRAJECTORY}.tools.0.function": "object",
    f"{TRAJECTORY}.tools.0.function.name": "string",
    f"{HISTORY}.tools.0.type": "constant",
    f"{HISTORY}.tools.0.function.name": "string",
    f"{HISTORY}.messages_and_choices.6.logprobs.content.0.logprob": "number",
}

# The same of every field that the specification makes optional
OPTIONAL = {
    f"{TRAJECTORY}.tools": "array",
    f"{TRAJECTORY}.additional_histories": "array",
    f"{TRAJECTORY}.initial_policy_version": "integer",
    f"{TRAJECTORY}.final_policy_version": "integer",
    f"{TRAJECTORY}.metrics": "object",
    f"{TRAJECTORY}.auto_metrics": "object",
    f"{TRAJECTORY}.metadata": "object",
    f"{TRAJECTORY}.logs": "array",
    f"{TRAJECTORY}.start_time": "date-time",
    f"{HISTORY}.tools": "array",
    f"{ITEMS}.0.name": "string",
    f"{ITEMS}.1.name": "string",
    f"{ITEMS}.2.name": "string",
    f"{ITEMS}.2.content.1.image_url.detail": "constant",
    f"{ITEMS}.2.content.3.file.file_data": "string",
    f"{ITEMS}.2.content.3.file.file_id": "string",
    f"{ITEMS}.2.content.3.file.filename": "string",
    f"{ITEMS}.3.audio": "object",
    f"{ITEMS}.3.content": "string or array",
    f"{ITEMS}.3.function_call": "object",
    f"{ITEMS}.3.name": "string",
    f"{ITEMS}.3.refusal": "string",
    f"{ITEMS}.3.tool_calls": "array",
    f"{CHOICE}.logprobs": "object",
    f"{CHOICE}.logprobs.content": "array",
    f"{CHOICE}.logprobs.refusal": "array",
    f"{CHOICE}.logprobs.content.0.bytes": "array",
    f"{CHOICE}.logprobs.content.0.token_id": "integer",
    f"{CHOICE}.logprobs.content.0.top_logprobs.0.bytes": "array",
    f"{CHOICE}.message.content": "string",
    f"{CHOICE}.message.refusal": "string",
    f"{CHOICE}.message.annotations": "array",
    f"{CHOICE}.message.audio": "object",
    f"{CHOICE}.message.function_call": "object",
    f"{CHOICE}.message.tool_calls": "array",
    f"{TRAJECTORY}.tools.0.function.description": "string",
    f"{TRAJECTORY}.tools.0.function.parameters": "object",
    f"{TRAJECTORY}.tools.0.function.strict": "boolean",
    CONFIG: "object",
    f"{CONFIG}.advantage_balance": "number",
    f"{CONFIG}.epsilon": "number",
    f"{CONFIG}.epsilon_high": "number",
    f"{CONFIG}.importance_sampling_level": "constant",
    f"{CONFIG}.vendor_k2_tau": "number",
    f"{CONFIG}.learning_rate": "number",
    f"{CONFIG}.mask_prob_ratio": "boolean",
    f"{CONFIG}.max_negative_advantage_importance_sampling_weight": "number",
    f"{CONFIG}.ppo": "boolean",
    f"{CONFIG}.precalculate_logprobs": "boolean",
    f"{CONFIG}.scale_rewards": "boolean",
    f"{CONFIG}.kl_penalty_coef": "number",
    f"{CONFIG}.kl_ref_step": "integer",
    f"{CONFIG}.truncated_importance_sampling": "number",
    f"{CONFIG}.credit": "constant",
    f"{CONFIG}.groups_per_step": "integer",
    f"{CONFIG}.epochs": "integer",
    f"{CONFIG}.loss_aggregation": "constant",
    f"{CONFIG}.loss_scale_factor": "number",
    f"{CONFIG}.mask_truncated": "boolean",
    f"{CONFIG}.max_grad_norm": "number",
    f"{CONFIG}.weight_decay": "number",
    f"{CONFIG}.custom_loss": "constant",
}

# Members of arrays and of free maps
MEMBERS = {
    "trajectory_groups.0": "object",
    TRAJECTORY: "object",
    HISTORY: "object",
    f"{ITEMS}.0": "object",
    f"{ITEMS}.0.content.0": "object",
    f"{ITEMS}.2.content.0": "object",
    f"{ITEMS}.3.content.0": "object",
    f"{ITEMS}.3.tool_calls.0": "object",
    CHOICE: "object",
    f"{CHOICE}.logprobs.content.0": "object",
    f"{CHOICE}.logprobs.content.0.bytes.0": "integer",
    f"{CHOICE}.logprobs.content.0.top_logprobs.0": "object",
    f"{CHOICE}.logprobs.content.0.top_logprobs.0.bytes.0": "integer",
    f"{CHOICE}.message.annotations.0": "object",
    f"{TRAJECTORY}.tools.0": "object",
    f"{TRAJECTORY}.logs.0": "string",
    f"{TRAJECTORY}.metrics.length": "number",
    f"{TRAJECTORY}.auto_metrics.seconds": "number",
    f"{TRAJECTORY}.metadata.seed": "string",
}

_UNLIKE_A_NUMBER = {True}  # a metric may be a boolean, and metadata may be a number too
_ALLOWED = {
    f"{TRAJECTORY}.metrics.length": _UNLIKE_A_NUMBER,
    f"{TRAJECTORY}.auto_metrics.seconds": _UNLIKE_A_NUMBER,
    f"{TRAJECTORY}.metadata.seed": {5, True},
}

WRONG_TYPES = [
    (path, bad)
    for path, kind in {**REQUIRED, **OPTIONAL, **MEMBERS}.items()
    for bad in WRONG[kind]
    if not (path in _ALLOWED and bad.__hash__ and bad in _ALLOWED[path])
]


@pytest.mark.parametrize(
    "model", [ExperimentalTrainingConfig, CreateTrainingJob, training.TrainingJobResponse, training.TrainingJob]
)
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_valid_training_object_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


@pytest.mark.parametrize(
    "model",
    [
        training.RegisterModel,
        training.Model,
        training.Checkpoint,
        training.CheckpointList,
        training.ModelCard,
        training.ModelCardList,
        training.DeleteCheckpoints,
        training.DeletedCheckpoints,
        training.DeletedModel,
        training.UsageEntry,
        training.UsageList,
    ],
)
@given(data=st.data())
@settings(max_examples=15)
def test_a_valid_model_or_checkpoint_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


def test_the_job_that_the_tests_break_is_valid(job, survives):
    survives(CreateTrainingJob, job(), job())


@pytest.mark.parametrize(("path", "bad"), WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_refused_at_its_path(job, refusals, changed, steps, path, bad):
    assert refusals(CreateTrainingJob, changed(job(), path, bad)) == {steps(path)}


@pytest.mark.parametrize("path", REQUIRED)
def test_a_required_field_that_is_missing_is_refused_at_its_path(job, refusals, changed, steps, path):
    assert refusals(CreateTrainingJob, changed(job(), path)) == {steps(path)}


@pytest.mark.parametrize("path", [*REQUIRED, *(p for p in MEMBERS if p != f"{TRAJECTORY}.metadata.seed")])
def test_a_null_where_a_value_is_required_is_refused_at_its_path(job, refusals, changed, steps, path):
    assert refusals(CreateTrainingJob, changed(job(), path, None)) == {steps(path)}


@pytest.mark.parametrize("path", OPTIONAL)
def test_a_null_in_an_optional_field_is_absent(job, survives, changed, path):
    survives(CreateTrainingJob, changed(job(), path, None), changed(job(), path))


def test_the_content_of_a_function_message_is_required_but_may_be_null(job, survives, refusals, changed, steps):
    path = f"{ITEMS}.5.content"
    survives(CreateTrainingJob, changed(job(), path, None), changed(job(), path, None))
    assert refusals(CreateTrainingJob, changed(job(), path)) == {steps(path)}
    assert refusals(CreateTrainingJob, changed(job(), path, [{"type": "text", "text": "3"}])) == {steps(path)}


@pytest.mark.parametrize("finish_reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_every_finish_reason_of_the_specification_is_known(job, survives, changed, finish_reason):
    body = changed(job(), f"{CHOICE}.finish_reason", finish_reason)
    survives(CreateTrainingJob, body, body)


@pytest.mark.parametrize(
    ("kind", "index", "allowed"),
    [
        ("developer", 0, {"text"}),
        ("system", 1, {"text"}),
        ("user", 2, {"text", "image_url", "input_audio", "file"}),
        ("assistant", 3, {"text", "refusal"}),
        ("tool", 4, {"text"}),
    ],
)
@pytest.mark.parametrize("part", ["text", "image_url", "input_audio", "file", "refusal"])
def test_a_message_takes_only_the_parts_of_its_kind(
    job, survives, refusals, changed, steps, kind, index, allowed, part
):
    user, assistant = job()["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"][2:4]
    example = {p["type"]: p for p in [*assistant["content"], *user["content"]]}[part]
    body = changed(job(), f"{ITEMS}.{index}.content", [example])
    if part in allowed:
        survives(CreateTrainingJob, body, body)
    else:
        assert (*steps(f"{ITEMS}.{index}.content"), 0, "type") in refusals(CreateTrainingJob, body)


def test_the_second_of_two_errors_is_named_too(job, refusals, changed, steps):
    body = changed(changed(job(), f"{TRAJECTORY}.reward", "high"), f"{CHOICE}.index", None)
    assert refusals(CreateTrainingJob, body) == {steps(f"{TRAJECTORY}.reward"), steps(f"{CHOICE}.index")}


@pytest.mark.parametrize("body", [None, [], "job", 5])
def test_a_body_that_is_no_object_is_refused_as_a_whole(refusals, body):
    assert refusals(CreateTrainingJob, body) == {()}


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("advantage_balance", 1.0000001),
        ("advantage_balance", -1.0000001),
        ("epsilon", -1e-9),
        ("epsilon_high", -1),
        ("learning_rate", -5e-6),
        ("max_negative_advantage_importance_sampling_weight", -0.5),
        ("importance_sampling_level", "geometric"),
        ("importance_sampling_level", "Token"),
    ],
)
def test_an_option_out_of_range_is_refused_at_its_path(job, refusals, changed, option, bad):
    assert refusals(CreateTrainingJob, changed(job(), f"{CONFIG}.{option}", bad)) == {(CONFIG, option)}


@pytest.mark.parametrize(
    ("option", "good"),
    [
        ("advantage_balance", 1),
        ("advantage_balance", -1),
        ("epsilon", 0),
        ("epsilon_high", 1e6),
        ("learning_rate", 0),
        ("max_negative_advantage_importance_sampling_weight", 0),
        ("vendor_k2_tau", -0.5),
        ("importance_sampling_level", "sequence"),
        ("importance_sampling_level", "average"),
        ("importance_sampling_level", "geometric_average"),
    ],
)
def test_an_option_at_the_edge_of_its_range_is_accepted(job, survives, changed, option, good):
    body = changed(job(), f"{CONFIG}.{option}", good)
    survives(CreateTrainingJob, body, body)


@pytest.mark.parametrize("path", ["", "trajectory_groups.0.", f"{TRAJECTORY}.", f"{HISTORY}.", f"{CONFIG}."])
def test_unknown_properties_of_a_job_are_kept(job, survives, changed, path):
    body = changed(job(), f"{path}novelty", {"a": [None, 1]})
    survives(CreateTrainingJob, body, body)


def test_empty_arrays_are_valid(survives):
    body = {"model_id": "12345678-1234-5678-1234-567812345678", "trajectory_groups": []}
    survives(CreateTrainingJob, body, body)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"vendor_k2_tau": 0.5}, {"vendor_k2_tau": 0.5}),
        ({"kimi_k2_tau": 0.5}, {"vendor_k2_tau": 0.5}),
        ({"kimi_k2_tau": None}, {}),
        ({"kimi_k2_tau": None, "vendor_k2_tau": 0.5}, {"vendor_k2_tau": 0.5}),
        ({"kimi_k2_tau": 0.5, "vendor_k2_tau": None}, {"vendor_k2_tau": 0.5}),
    ],
)
def test_k2_tau_is_read_by_either_name_and_sent_by_the_one_of_the_specification(survives, sent, kept):
    survives(ExperimentalTrainingConfig, sent, kept)


@pytest.mark.parametrize("name", ["vendor_k2_tau", "kimi_k2_tau"])
def test_a_bad_k2_tau_is_refused_by_the_name_it_was_sent_under(refusals, name):
    assert refusals(ExperimentalTrainingConfig, {name: "strong"}) == {(name,)}


@pytest.mark.parametrize("name", ["entity", "project", "name"])
@pytest.mark.parametrize("bad", ["", "a/b", "a b", "a:b", "a\n", 5])
def test_a_name_that_would_not_fit_into_a_model_name_is_refused(refusals, name, bad):
    body = {"entity": "e", "project": "p", "name": "n", name: bad}
    assert refusals(training.RegisterModel, body) == {(name,)}


@pytest.mark.parametrize("name", ["id", "model_id", "status", "created_at"])
def test_a_stored_job_without_a_required_field_is_refused_at_its_path(refusals, changed, name):
    uuid = "12345678-1234-5678-1234-567812345678"
    record = {"id": uuid, "model_id": uuid, "status": "queued", "created_at": "2026-01-31T12:00:00Z"}
    assert refusals(training.TrainingJob, changed(record, name)) == {(name,)}


@pytest.mark.parametrize("bad", ["job-1", "", 5, None])
def test_the_id_of_a_created_job_is_a_uuid(refusals, bad):
    assert refusals(training.TrainingJobResponse, {"id": bad}) == {("id",)}


def properties(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return schema["$defs"][name]["properties"]


def test_the_json_schema_of_a_job_says_what_the_specification_says():
    schema = CreateTrainingJob.model_json_schema()
    assert schema["required"] == ["model_id", "trajectory_groups"]
    assert schema["properties"]["model_id"] == {"format": "uuid", "title": "Model Id", "type": "string"}
    assert sorted(properties(schema, "ExperimentalTrainingConfig")) == sorted(
        path.removeprefix(f"{CONFIG}.") for path in OPTIONAL if path.startswith(f"{CONFIG}.")
    )
    assert schema["$defs"]["Trajectory"]["required"] == ["messages_and_choices", "reward"]
    assert schema["$defs"]["FunctionMessage"]["required"] == ["role", "content", "name"]
    assert schema["$defs"]["Choice"]["required"] == ["finish_reason", "index", "message"]
    assert properties(schema, "Trajectory")["reward"]["type"] == "number"
    levels = properties(schema, "ExperimentalTrainingConfig")["importance_sampling_level"]["anyOf"][0]["enum"]
    assert levels == ["token", "sequence", "average", "geometric_average"]
    items = properties(schema, "History")["messages_and_choices"]["items"]["oneOf"]
    assert {item["$ref"].rpartition("/")[2] for item in items} == {
        "DeveloperMessage",
        "SystemMessage",
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "FunctionMessage",
        "Choice",
    }


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_every_reference_of_the_json_schema_can_be_followed(mode):
    schema = CreateTrainingJob.model_json_schema(mode=mode, ref_template="#/components/schemas/{model}")
    referred = set(references(schema))
    assert {ref.removeprefix("#/components/schemas/") for ref in referred} <= set(schema["$defs"])
    assert "#/components/schemas/TrajectoryGroup" in referred


def references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
        return own + [ref for value in schema.values() for ref in references(value)]
    return [ref for value in schema for ref in references(value)] if isinstance(schema, list) else []
