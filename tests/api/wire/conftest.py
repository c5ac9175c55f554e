"""Valid JSON of every wire object: strategies written from the specification's tables, and one full training job.

A strategy yields pairs `(sent, kept)`: JSON that a client may send, with nulls in optional fields and with properties
nobody specified, and what must come out again, which is the same without those nulls.
"""

import copy
import json
from typing import Any

import pydantic
import pytest
from hypothesis import strategies as st

from rolloutlab.api.wire import chat, engine, fine_tuning, training, trajectories
from rolloutlab.api.wire import errors as problem
from rolloutlab.api.wire import training as events
from rolloutlab.api.wire import trajectories as logprobs
from rolloutlab.api.wire.base import Wire

Pair = tuple[Any, Any]
Pairs = st.SearchStrategy[Pair]

_ABSENT = object()
_CHOICE_MARKS = {"message", "finish_reason"}  # together they would make a message a Choice


def _same(values: st.SearchStrategy[Any]) -> Pairs:
    return values.map(lambda value: (value, value))


def _constant(value: str) -> Pairs:
    return st.just((value, value))


def _one_of(*values: str) -> Pairs:
    return _same(st.sampled_from(values))


def _or_null(values: Pairs) -> Pairs:
    """A field that the specification lets be null though it is required: its null is kept."""
    return values | st.just((None, None))


def _array(items: Pairs, most: int = 2, least: int = 0) -> Pairs:
    return st.lists(items, min_size=least, max_size=most).map(
        lambda pairs: ([sent for sent, _ in pairs], [kept for _, kept in pairs])
    )


def _values(values: st.SearchStrategy[Any]) -> Pairs:
    return _same(st.dictionaries(_TEXT, values, max_size=3))


def _object(required: dict[str, Pairs], optional: dict[str, Pairs] | None = None, *aliases: str) -> Pairs:
    optional = optional or {}
    taken = {*required, *optional, *aliases, *_CHOICE_MARKS}
    fields = st.fixed_dictionaries(
        required, optional={name: value | st.just((None, _ABSENT)) for name, value in optional.items()}
    )
    extra = st.dictionaries(_TEXT.filter(lambda name: name not in taken), _JSON, max_size=2)
    return st.tuples(fields, extra).map(_pair)


def _pair(parts: tuple[dict[str, Pair], dict[str, Any]]) -> Pair:
    fields, extra = parts
    sent = {name: pair[0] for name, pair in fields.items()} | extra
    kept = {name: pair[1] for name, pair in fields.items() if pair[1] is not _ABSENT} | extra
    return sent, kept


_TEXT = st.text(max_size=6)
_INTEGER = st.integers(-(2**53), 2**53)
_NUMBER = st.floats(allow_nan=False, allow_infinity=False) | _INTEGER
_LEAF = st.none() | st.booleans() | _NUMBER | _TEXT
_INNER = _LEAF | st.lists(_LEAF, max_size=2) | st.dictionaries(_TEXT, _LEAF, max_size=2)
_JSON = _INNER | st.lists(_INNER, max_size=2) | st.dictionaries(_TEXT, _INNER, max_size=2)

text = _same(_TEXT)
integer = _same(_INTEGER)
number = _same(_NUMBER)
boolean = _same(st.booleans())
free_form = _values(_JSON)
uuid = _same(st.uuids().map(str))
step = _same(st.integers(0, 999_999_999))
name = _same(st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True))
date_time = _same(
    st.tuples(
        st.datetimes().map(lambda moment: moment.isoformat()), st.sampled_from(("Z", "+00:00", "-08:30", ""))
    ).map("".join)
)
bytes_ = _array(_same(st.integers(0, 255)))
at_least_0 = _same(st.floats(0, allow_infinity=False))

MODELS: dict[type, Pairs] = {}

# Content parts
MODELS[chat.TextPart] = text_part = _object({"type": _constant("text"), "text": text})
MODELS[chat.ImageUrl] = image_url = _object({"url": text}, {"detail": _one_of("auto", "low", "high")})
MODELS[chat.ImagePart] = image_part = _object({"type": _constant("image_url"), "image_url": image_url})
MODELS[chat.InputAudio] = input_audio = _object({"data": text, "format": _one_of("wav", "mp3")})
MODELS[chat.InputAudioPart] = input_audio_part = _object({"type": _constant("input_audio"), "input_audio": input_audio})
MODELS[chat.File] = file = _object({}, {"file_data": text, "file_id": text, "filename": text})
MODELS[chat.FilePart] = file_part = _object({"type": _constant("file"), "file": file})
MODELS[chat.RefusalPart] = refusal_part = _object({"type": _constant("refusal"), "refusal": text})

# Tools and calls
MODELS[chat.FunctionDefinition] = function_definition = _object(
    {"name": text}, {"description": text, "parameters": free_form, "strict": boolean}
)
MODELS[chat.FunctionTool] = function_tool = _object({"type": _constant("function"), "function": function_definition})
MODELS[chat.FunctionCall] = function_call = _object({"name": text, "arguments": text})
MODELS[chat.FunctionToolCall] = function_tool_call = _object(
    {"id": text, "type": _constant("function"), "function": function_call}
)
MODELS[chat.CustomCall] = custom_call = _object({"name": text, "input": text})
MODELS[chat.CustomToolCall] = custom_tool_call = _object(
    {"id": text, "type": _constant("custom"), "custom": custom_call}
)
tool_calls = _array(function_tool_call | custom_tool_call)
tools = _array(function_tool)
MODELS[chat.Audio] = audio = _object({"id": text})
MODELS[chat.CompletionAudio] = completion_audio = _object(
    {"id": text, "data": text, "expires_at": integer, "transcript": text}
)
MODELS[chat.UrlCitation] = url_citation = _object(
    {"start_index": integer, "end_index": integer, "title": text, "url": text}
)
MODELS[chat.Annotation] = annotation = _object({"type": _constant("url_citation"), "url_citation": url_citation})

# Message kinds
text_content = text | _array(text_part)
user_content = text | _array(text_part | image_part | input_audio_part | file_part)
MODELS[chat.DeveloperMessage] = developer = _object(
    {"role": _constant("developer"), "content": text_content}, {"name": text}
)
MODELS[chat.SystemMessage] = system = _object({"role": _constant("system"), "content": text_content}, {"name": text})
MODELS[chat.UserMessage] = user = _object({"role": _constant("user"), "content": user_content}, {"name": text})
MODELS[chat.AssistantMessage] = assistant = _object(
    {"role": _constant("assistant")},
    {
        "audio": audio,
        "content": text | _array(text_part | refusal_part),
        "function_call": function_call,
        "name": text,
        "refusal": text,
        "tool_calls": tool_calls,
    },
)
MODELS[chat.ToolMessage] = tool = _object({"role": _constant("tool"), "content": text_content, "tool_call_id": text})
MODELS[chat.FunctionMessage] = function = _object(
    {"role": _constant("function"), "content": _or_null(text), "name": text}
)
message = developer | system | user | assistant | tool | function

# Choices
MODELS[chat.TopLogprob] = top_logprob = _object({"token": text, "logprob": number}, {"bytes": bytes_})
MODELS[chat.TokenLogprob] = token_logprob = _object(
    {"token": text, "logprob": number, "top_logprobs": _array(top_logprob)}, {"bytes": bytes_, "token_id": integer}
)
MODELS[chat.ChoiceLogprobs] = choice_logprobs = _object(
    {}, {"content": _array(token_logprob), "refusal": _array(token_logprob)}
)
MODELS[chat.CompletionMessage] = completion_message = _object(
    {"role": _constant("assistant")},
    {
        "content": text,
        "refusal": text,
        "annotations": _array(annotation),
        "audio": completion_audio,
        "function_call": function_call,
        "tool_calls": tool_calls,
    },
)
finish_reason = _one_of("stop", "length", "tool_calls", "content_filter", "function_call")
MODELS[chat.Choice] = choice = _object(
    {
        "finish_reason": finish_reason,
        "index": integer,
        "message": completion_message,
    },
    {"logprobs": choice_logprobs},
)
MODELS[chat.AnsweredChoice] = choice
MODELS[chat.Usage] = usage = _object({"prompt_tokens": integer, "completion_tokens": integer, "total_tokens": integer})
MODELS[chat.ChatCompletion] = _object(
    {"id": text, "object": _constant("chat.completion"), "created": integer, "model": text, "choices": _array(choice)},
    {"usage": usage},
)
MODELS[chat.NamedFunction] = named_function = _object({"name": text})
MODELS[chat.NamedToolChoice] = named_tool_choice = _object({"type": _constant("function"), "function": named_function})
MODELS[chat.StreamOptions] = stream_options = _object({}, {"include_usage": boolean})
stop = _same(st.text(min_size=1, max_size=6))
MODELS[chat.ChatRequest] = _object(
    {"model": text, "messages": _array(message, least=1)},
    {
        "n": _same(st.integers(1, 1024)),
        "temperature": _same(st.floats(0, 2)),
        "top_p": _same(st.floats(0, 1, exclude_min=True)),
        "max_tokens": _same(st.integers(1)),
        "max_completion_tokens": _same(st.integers(1)),
        "stop": stop | _array(stop, most=4),
        "seed": integer,
        "logprobs": boolean,
        "top_logprobs": _same(st.integers(0, 20)),
        "tools": tools,
        "tool_choice": _one_of("none", "auto", "required") | named_tool_choice,
        "stream": boolean,
        "stream_options": stream_options,
    },
)
MODELS[chat.ToolCallDelta] = tool_call_delta = _object(
    {"index": integer, "id": text, "type": _constant("function"), "function": function_call}
)
MODELS[chat.Delta] = delta = _object(
    {}, {"role": _constant("assistant"), "content": text, "tool_calls": _array(tool_call_delta)}
)
MODELS[chat.ChunkChoice] = chunk_choice = _object(
    {"index": integer, "delta": delta}, {"finish_reason": finish_reason, "logprobs": choice_logprobs}
)
MODELS[chat.ChatCompletionChunk] = _object(
    {
        "id": text,
        "object": _constant("chat.completion.chunk"),
        "created": integer,
        "model": text,
        "choices": _array(chunk_choice),
    },
    {"usage": usage},
)

# Trajectories
items = _array(message | choice, most=3)
MODELS[trajectories.History] = history = _object({"messages_and_choices": items}, {"tools": tools})
MODELS[trajectories.Trajectory] = trajectory = _object(
    {"messages_and_choices": items, "reward": number},
    {
        "tools": tools,
        "additional_histories": _array(history, most=1),
        "initial_policy_version": integer,
        "final_policy_version": integer,
        "metrics": _values(st.booleans() | _NUMBER),
        "auto_metrics": _values(st.booleans() | _NUMBER),
        "metadata": _values(_LEAF),
        "logs": _array(text),
        "start_time": date_time,
    },
)
MODELS[trajectories.TrajectoryGroup] = group = _object({"trajectories": _array(trajectory)})

# Training
MODELS[training.ExperimentalTrainingConfig] = config = _object(
    {},
    {
        "advantage_balance": _same(st.floats(-1, 1)),
        "epsilon": at_least_0,
        "epsilon_high": at_least_0,
        "importance_sampling_level": _one_of("token", "sequence", "average", "geometric_average"),
        "vendor_k2_tau": number,
        "learning_rate": at_least_0,
        "mask_prob_ratio": boolean,
        "max_negative_advantage_importance_sampling_weight": at_least_0,
        "ppo": boolean,
        "precalculate_logprobs": boolean,
        "scale_rewards": boolean,
        "kl_penalty_coef": at_least_0,
        "kl_ref_step": _same(st.integers(0, 999_999_999)),
        "truncated_importance_sampling": at_least_0,
        "credit": _one_of("trajectory", "turn"),
        "groups_per_step": _same(st.integers(0, 999_999_999)),
        "epochs": _same(st.integers(1, 16)),
        "loss_aggregation": _one_of("sequence_mean", "token_mean", "constant"),
        "loss_scale_factor": _same(st.floats(0, exclude_min=True, allow_infinity=False)),
        "mask_truncated": boolean,
        "max_grad_norm": at_least_0,
        "weight_decay": at_least_0,
        "custom_loss": _constant("0" * 64),
    },
    "kimi_k2_tau",
)
MODELS[training.CreateTrainingJob] = _object(
    {"model_id": uuid, "trajectory_groups": _array(group)}, {"experimental_config": config}
)
MODELS[training.TrainingJobResponse] = _object({"id": uuid})
MODELS[training.TrainingJob] = _object(
    {
        "id": uuid,
        "model_id": uuid,
        "status": _one_of("queued", "running", "succeeded", "failed", "cancelled"),
        "created_at": date_time,
    },
    {"started_at": date_time, "ended_at": date_time, "step": integer, "final_step": integer, "error": text},
)
MODELS[training.RegisterModel] = _object(
    {"project": name, "name": name},
    {"entity": name, "base_model": text, "return_existing": boolean, "from_checkpoint": text},
)
MODELS[training.Ancestor] = ancestor = _object({"model_id": uuid, "model": text, "step": step})
MODELS[training.Model] = _object(
    {"id": uuid, "entity": text, "project": text, "name": text, "base_model": text},
    {"run_id": text, "made_from": _array(ancestor)},
)
MODELS[training.CheckpointFile] = checkpoint_file = _object(
    {
        "name": _same(st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,8}\.(json|safetensors|jinja|txt|model)", fullmatch=True)),
        "bytes": _same(st.integers(0, 2**53)),
        "sha256": _same(st.from_regex(r"[0-9a-f]{64}", fullmatch=True)),
    }
)
MODELS[training.CheckpointFileList] = _object(
    {"object": _constant("list"), "data": _array(checkpoint_file)},
    {
        "base": text,
        "fingerprint": text,
        "dtype": _one_of("float32", "bfloat16"),
        "merged_base": boolean,
        "elsewhere": text,
    },
)
MODELS[training.LostCheckpoint] = lost_checkpoint = _object(
    {"model_id": uuid, "step": integer, "bytes": integer, "reason": text}, {"model": text}
)
MODELS[training.LostCheckpointList] = _object({"object": _constant("list"), "data": _array(lost_checkpoint)})
MODELS[training.RecoveredCheckpoints] = _object(
    {"recovered": _array(lost_checkpoint), "remaining": _array(lost_checkpoint)}
)
MODELS[training.Checkpoint] = checkpoint = _object({"id": text, "step": integer}, {"metrics": _values(_NUMBER)})
MODELS[training.CheckpointList] = _object(
    {"object": _constant("list"), "data": _array(checkpoint), "has_more": boolean},
    {"first_id": text, "last_id": text},
)
MODELS[training.DeleteCheckpoints] = _object({"steps": _array(integer)})
MODELS[training.DeletedCheckpoints] = _object({"deleted_count": integer, "not_found_steps": _array(integer)})
MODELS[training.DeletedModel] = _object({"id": uuid, "deleted": boolean})
MODELS[training.ModelCard] = model_card = _object(
    {"id": text, "object": _constant("model"), "created": integer, "owned_by": text}
)
MODELS[training.ModelCardList] = _object({"object": _constant("list"), "data": _array(model_card)})
MODELS[training.UsageEntry] = usage_entry = _object(
    {"project": text, "model": text, "requests": integer, "prompt_tokens": integer, "completion_tokens": integer}
)
MODELS[training.UsageList] = _object({"object": _constant("list"), "data": _array(usage_entry)})

# Fine-tuning
MODELS[fine_tuning.Conversation] = _object(
    {"messages": _array(message | choice, least=1)}, {"tools": tools, "name": text}, "messages_and_choices", "weight"
)
MODELS[fine_tuning.SFTTrainingConfig] = sft_config = _object(
    {}, {"batch_size": _same(st.integers(1, 2**53)), "learning_rate": at_least_0 | _array(at_least_0, least=1)}
)
MODELS[fine_tuning.CreateSFTTrainingJob] = _object(
    {"model_id": uuid, "training_data_url": text}, {"config": sft_config}
)
_COUNTS = dict.fromkeys(("bytes", "conversations", "trainable", "tokens", "rows"), integer)
MODELS[fine_tuning.UploadedFile] = _object({"object": _constant("file"), **_COUNTS}, {"id": uuid, "url": text})

# Logprobs
MODELS[logprobs.LogprobsRequest] = _object({"model": text, "histories": _array(history)})
MODELS[logprobs.ScoredTurn] = scored_turn = _object({"index": integer, "logprobs": choice_logprobs})
MODELS[logprobs.ScoredHistory] = scored_history = _object({"turns": _array(scored_turn)})
MODELS[logprobs.ScoredHistories] = _object({"object": _constant("list"), "model": text, "data": _array(scored_history)})

# Events and refusals
MODELS[events.Event] = event = _object({"id": text, "type": text}, {"data": free_form})
MODELS[events.EventList] = _object({"object": _constant("list"), "data": _array(event), "has_more": boolean})
MODELS[engine.EngineStatus] = _object({"name": text}, {"status": _values(_TEXT), "unsupported": _values(_TEXT)})
MODELS[problem.ValidationError] = validation_error = _object(
    {"loc": _array(text | integer, most=4), "msg": text, "type": text}
)
MODELS[problem.HTTPValidationError] = _object({}, {"detail": _array(validation_error)})
MODELS[problem.Problem] = _object({"detail": text})
MODELS[problem.ChatError] = chat_error = _object({"message": text, "type": text}, {"param": text, "code": text})
MODELS[problem.ChatProblem] = _object({"error": chat_error})

_TOKEN = {
    "token": "hi",
    "logprob": -0.5,
    "top_logprobs": [{"token": "hi", "logprob": -0.5, "bytes": [104, 105]}],
    "bytes": [104, 105],
    "token_id": 7,
}

_FUNCTION_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True},
}

_CHOICE = {
    "finish_reason": "stop",
    "index": 0,
    "logprobs": {"content": [_TOKEN], "refusal": [_TOKEN]},
    "message": {
        "role": "assistant",
        "content": "hi",
        "refusal": "no",
        "annotations": [
            {
                "type": "url_citation",
                "url_citation": {"start_index": 0, "end_index": 2, "title": "T", "url": "https://example.org"},
            }
        ],
        "audio": {"id": "a", "data": "AAAA", "expires_at": 1, "transcript": "hi"},
        "function_call": {"name": "add", "arguments": "{}"},
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    },
}

_ITEMS = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": "d"},
    {"role": "system", "content": [{"type": "text", "text": "Be kind."}], "name": "s"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/i.png", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "file", "file": {"file_data": "AAAA", "file_id": "f", "filename": "f.txt"}},
        ],
        "name": "u",
    },
    {
        "role": "assistant",
        "audio": {"id": "a"},
        "content": [{"type": "text", "text": "Let me see."}, {"type": "refusal", "refusal": "No."}],
        "function_call": {"name": "add", "arguments": "{}"},
        "name": "m",
        "refusal": "no",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}},
            {"id": "k", "type": "custom", "custom": {"name": "run", "input": "x"}},
        ],
    },
    {"role": "tool", "content": [{"type": "text", "text": "3"}], "tool_call_id": "c"},
    {"role": "function", "content": "3", "name": "add"},
    _CHOICE,
]

_JOB = {
    "model_id": "12345678-1234-5678-1234-567812345678",
    "trajectory_groups": [
        {
            "trajectories": [
                {
                    "messages_and_choices": _ITEMS,
                    "tools": [_FUNCTION_TOOL],
                    "additional_histories": [{"messages_and_choices": _ITEMS, "tools": [_FUNCTION_TOOL]}],
                    "reward": 1.0,
                    "initial_policy_version": 0,
                    "final_policy_version": 1,
                    "metrics": {"length": 3},
                    "auto_metrics": {"seconds": 0.5},
                    "metadata": {"seed": 1},
                    "logs": ["scored"],
                    "start_time": "2026-01-31T12:00:00Z",
                }
            ]
        }
    ],
    "experimental_config": {
        "advantage_balance": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.3,
        "importance_sampling_level": "token",
        "vendor_k2_tau": 0.1,
        "learning_rate": 5e-6,
        "mask_prob_ratio": False,
        "max_negative_advantage_importance_sampling_weight": 2.0,
        "ppo": True,
        "precalculate_logprobs": False,
        "scale_rewards": True,
        "kl_penalty_coef": 0.05,
        "kl_ref_step": 1,
        "truncated_importance_sampling": 2.0,
        "credit": "turn",
        "groups_per_step": 8,
        "epochs": 2,
        "loss_aggregation": "constant",
        "loss_scale_factor": 512.0,
        "mask_truncated": True,
        "max_grad_norm": 1.0,
        "weight_decay": 0.1,
        "custom_loss": "0" * 64,
    },
}


@pytest.fixture(scope="session")
def valid():
    """The strategy of `(sent, kept)` for a class of `rolloutlab.api.wire`.

    A function, because hypothesis shows the arguments of a failing test, and warns where that is very long.
    """
    return lambda model: MODELS[model]


@pytest.fixture(scope="session")
def survives():
    """Asserts that `sent` becomes a model and `kept` comes out again, by each way in and each way out."""
    return _survives


def _survives(model: type[Wire], sent: Any, kept: Any) -> None:
    expected = _exact(kept)
    for parsed in (model.model_validate(sent), model.model_validate_json(json.dumps(sent))):
        assert _exact(parsed.to_wire()) == expected
        assert _exact(json.loads(parsed.to_json())) == expected
    assert _exact(model.model_validate(kept).to_wire()) == expected


def _exact(value: Any) -> Any:
    """JSON in a form whose equality is JSON's: 1 is 1.0, but true is not 1."""
    if isinstance(value, dict):
        return {key: _exact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_exact(inner) for inner in value]
    return ("boolean", value) if isinstance(value, bool) else value


@pytest.fixture(scope="session")
def refusals():
    """The paths into `body` that a refusal names; the same whether JSON text or parsed JSON is validated."""
    return _refusals


def _refusals(model: type[Wire], body: Any) -> set[tuple[str | int, ...]]:
    with pytest.raises(pydantic.ValidationError) as of_values:
        model.model_validate(body)
    with pytest.raises(pydantic.ValidationError) as of_text:
        model.model_validate_json(json.dumps(body))
    named = [{tuple(e.loc) for e in problem.locate(r.value.errors(), body)} for r in (of_values, of_text)]
    assert named[0] == named[1]
    return named[0]


@pytest.fixture(scope="session")
def job():
    """Makes a valid body of a training job in which every field of the specification is present."""
    return lambda: json.loads(json.dumps(_JOB))  # a deep copy would keep the parts that _JOB shares shared


@pytest.fixture(scope="session")
def changed():
    """A record with the value at `path` (names and indexes, joined by dots) replaced, or removed when not given."""
    return _changed


def _changed(record: Any, path: str, *value: Any) -> Any:
    record = copy.deepcopy(record)
    *parents, last = _steps(path)
    here = record
    for step in parents:
        here = here[step]
    if value:
        here[last] = value[0]
    else:
        del here[last]
    return record


@pytest.fixture(scope="session")
def steps():
    """`a.0.b` as `("a", 0, "b")`."""
    return _steps


def _steps(path: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdigit() else step for step in path.split("."))
