"""Reward functions of TRL and rubrics of verifiers, as published, and graders of OpenAI's API.

These libraries are installed beside rolloutlab in this environment: a reward function runs in its user's process.
"""

import json
from typing import Any

import httpx
import pytest
import verifiers as vf
from openai.types import graders as types
from trl.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    reasoning_accuracy_reward,
    think_format_reward,
)

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.integrations.verifiers import reward as verifiers_reward
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import Arrival, NewGroup

pytestmark = pytest.mark.filterwarnings("default")  # these libraries warn as they please
ANSWERS = [r"<think>half</think>It is $\boxed{\frac{1}{2}}$.", r"It is $\boxed{\frac{1}{3}}$.", "I do not know."]


async def answered(request: httpx.Request) -> httpx.Response:
    """A model that rates everything 0.8, or as good."""
    form = json.loads(request.content)["messages"][0]["content"]
    text = '{"label": "positive"}' if '"label"' in form else '{"steps": [], "result": 0.8}'
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": text}}
    return httpx.Response(
        200, json={"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    )


@pytest.fixture
def lab(tmp_path):
    http = HttpClient(httpx.MockTransport(answered), backoff=0)
    session = Session(Settings(home=tmp_path, service=Address("http://a.example", "http://a.example/v1")), http=http)
    yield session
    session.close()
    http.close()


@pytest.fixture
def scored(lab):
    """The rewards and components of one group by a function, rubric or grader."""

    def score(reward: Any, answers: list[Any] = ANSWERS, tokens: int = 4, **row: Any):
        def choice(given: Any) -> Choice:
            logprobs = [{"token": "a", "token_id": i, "logprob": -0.5, "top_logprobs": []} for i in range(tokens)]
            message = {"role": "assistant", **(given if isinstance(given, dict) else {"content": given})}
            finish = "stop" if message["content"] else "length"
            raw = {"finish_reason": finish, "index": 0, "message": message, "logprobs": {"content": logprobs}}
            return Choice.model_validate(raw)

        collection = lab.store.open_collection("c")
        prompt = NewGroup([UserMessage(role="user", content="What is 2/4?")], row)
        (group,) = lab.store.add_groups(collection, [prompt])
        arrivals = [Arrival(i, [choice(text)]) for i, text in enumerate(answers)]
        lab.store.put(group, arrivals, model="m", step=0, sampling={})
        label = lab.store.find("c:latest").label  # scored in this thread: math_verify has time limits there
        lab.reward(label, reward, concurrency=1, say=lambda _: None)
        trajectories = lab.collection(label).trajectories
        return [t.reward for t in trajectories], [dict(t.components) for t in trajectories]

    return score


# TRL


def test_think_format_reward(scored):
    assert scored(think_format_reward)[0] == [1.0, 0.0, 0.0]


def test_accuracy_reward(scored):
    assert scored(accuracy_reward, solution=r"$\frac{1}{2}$")[0] == [1.0, 0.0, 0.0]


def test_accuracy_reward_of_a_solution_that_is_no_mathematics_applies_to_nothing(scored):
    rewards, _ = scored([accuracy_reward, think_format_reward], solution="")
    assert rewards == [1.0, 0.0, 0.0]


def test_reasoning_accuracy_reward(scored):
    assert scored(reasoning_accuracy_reward, solution=r"$\frac{1}{2}$")[0] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(("tokens", "reward"), [(70, 0.0), (90, -0.5), (120, -1.0)])
def test_soft_overlong_punishment(scored, tokens, reward):
    punishment = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert scored(punishment, tokens=tokens)[0] == [reward] * 3


def test_repetition_penalty_and_cosine_scaled_reward_together(scored):
    rewards, parts = scored(
        [get_repetition_penalty_reward(ngram_size=2), get_cosine_scaled_reward(max_len=100)],
        tokens=50,
        solution=r"$\frac{1}{2}$",
    )
    assert rewards == pytest.approx([0.75, -0.75, -0.75])
    assert parts[0].keys() == {"repetition_penalty_reward", "cosine_scaled_reward"}


# A service that splits reasoning from the answer, as vLLM does and ours: the third was cut off while it thought.
THOUGHTS = [
    {"reasoning_content": r"Perhaps \boxed{2}?", "content": r"It is $\boxed{\frac{1}{2}}$."},
    {"reasoning": r"Surely $\boxed{\frac{1}{2}}$?", "content": r"It is $\boxed{\frac{1}{3}}$."},
    {"reasoning_content": r"It is $\boxed{\frac{1}{2}}$, or", "content": ""},
]


@pytest.mark.parametrize("row", [{}, {"prompt": [{"role": "user", "content": "What is 2/4?"}]}])
def test_rewards_of_thoughts_are_those_of_the_decoded_completions(scored, row):
    """The right values are those of the functions themselves on the texts that a tokenizer decodes."""
    decoded = [
        "<think>Perhaps \\boxed{2}?</think>It is $\\boxed{\\frac{1}{2}}$.",
        "<think>Surely $\\boxed{\\frac{1}{2}}$?</think>It is $\\boxed{\\frac{1}{3}}$.",
        "<think>It is $\\boxed{\\frac{1}{2}}$, or",
    ]
    completions = [[{"role": "assistant", "content": text}] for text in decoded]
    solution = r"$\frac{1}{2}$"
    assert think_format_reward(completions) == [1.0, 1.0, 0.0]
    assert scored(think_format_reward, THOUGHTS, **row)[0] == [1.0, 1.0, 0.0]
    assert reasoning_accuracy_reward(completions, [solution] * 3) == [1.0, 0.0, 0.0]
    assert scored(reasoning_accuracy_reward, THOUGHTS, solution=solution, **row)[0] == [1.0, 0.0, 0.0]
    right = accuracy_reward(completions, [solution] * 3)
    assert scored(accuracy_reward, THOUGHTS, solution=solution, **row)[0] == right


# verifiers


async def has_answer(completion, answer) -> float:
    return float(answer in completion[-1]["content"])


async def unlike_others(completions) -> list[float]:
    texts = [messages[-1]["content"] for messages in completions]
    return [0.2 * (texts.count(text) == 1) for text in texts]


async def letters(completion) -> float:
    return float(len(completion[-1]["content"]))


def test_a_rubric_of_functions_of_rollouts_and_of_groups(scored):
    rubric = vf.Rubric(funcs=[has_answer, unlike_others])
    rubric.add_metric(letters)
    rewards, parts = scored(rubric, ["4", "4", "It is 4.", "5"], answer="4")
    assert rewards == pytest.approx([1.0, 1.0, 1.2, 0.2])
    assert parts[2] == {"has_answer": 1.0, "unlike_others": 0.2, "letters": 8.0}


def test_the_rubric_of_an_xml_parser(scored):
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric(funcs=[parser.get_format_reward_func()], parser=parser)
    rewards, _ = scored(rubric, ["<answer>4</answer>", "4"], answer="4")
    assert rewards[0] > rewards[1]


def test_the_rubric_of_a_think_parser(scored):
    parser = vf.ThinkParser()
    rubric = vf.Rubric(funcs=[parser.get_format_reward_func(), has_parsed], weights=[0.5, 1.0], parser=parser)
    rewards, _ = scored(rubric, ["<think>2 + 2</think>4", "4 <think></think> 5"], answer="4")
    assert rewards[0] == 1.5
    assert rewards[1] < 1.0


@pytest.mark.parametrize("parser", [vf.ThinkParser(), vf.XMLParser(["think", "answer"])])
def test_parsers_of_thoughts_read_those_that_a_service_split_off(scored, parser):
    said = "<answer>4</answer>" if isinstance(parser, vf.XMLParser) else "4"
    rubric = vf.Rubric(funcs=[has_parsed, parser.get_format_reward_func()], weights=[1.0, 0.5], parser=parser)
    answers = [{"reasoning_content": "2 + 2", "content": said}, {"reasoning_content": "2 + 2", "content": "5"}]
    rewards, _ = scored(rubric, answers, answer="4")
    assert rewards[0] == 1.5
    assert rewards[1] <= 0.5


def test_other_rubrics_get_the_answer_with_the_thought_beside_it_as_from_the_service(scored):
    async def both(completion, answer) -> float:
        return float(completion[-1]["content"] == answer and completion[-1].reasoning_content == "2 + 2")

    answers = [{"reasoning": "2 + 2", "content": "4"}, {"reasoning": "2 + 2 is 4", "content": "5"}]
    assert scored(vf.Rubric(funcs=[both]), answers, answer="4")[0] == [1.0, 0.0]
    boxed = [{**each, "content": rf"\boxed{{{each['content']}}}"} for each in answers]
    assert scored(vf.MathRubric(), boxed, answer="4")[0] == [1.0, 0.0]


def has_parsed(parser, completion, answer) -> float:
    return float(parser.parse_answer(completion) == answer)


def test_the_math_rubric(scored):
    rewards, parts = scored(vf.MathRubric(), [r"\boxed{\frac{2}{4}}", r"\boxed{3}", "1/2"], answer="1/2")
    assert rewards == [1.0, 0.0, 0.0]
    assert parts[0] == {"correct_answer": 1.0}


def test_a_group_of_rubrics(scored):
    group = vf.RubricGroup([vf.Rubric(funcs=[has_answer]), vf.Rubric(funcs=[letters], weights=[0.1])])
    assert scored(group, ["4", "no"], answer="4")[0] == pytest.approx([1.1, 0.2])


def test_a_function_by_itself_with_a_column_of_another_name(lab, scored):
    assert scored(verifiers_reward(has_answer, answer="truth"), ["4", "5"], truth="4")[0] == [1.0, 0.0]


# OpenAI's graders, each first checked by the types of OpenAI's own library


NAMES = {"input": "{{sample.output_json.name}}", "reference": "{{ item.name }}"}
STRING_CHECK = {
    "type": "string_check",
    "name": "same text",
    "input": "{{sample.output_text}}",
    "reference": "{{item.label}}",
    "operation": "eq",
}
TEXT_SIMILARITY = {
    "type": "text_similarity",
    "name": "like it",
    "input": "{{sample.output_text}}",
    "reference": "{{item.label}}",
    "evaluation_metric": "fuzzy_match",
}
SCORE_MODEL = {
    "type": "score_model",
    "name": "how close",
    "model": "gpt-5-mini",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "{{item.label}} or {{sample.output_text}}?"}]}
    ],
    "sampling_params": {"temperature": 1, "top_p": 1, "seed": 42, "reasoning_effort": "low"},
    "range": [0, 1],
}
LABEL_MODEL = {
    "type": "label_model",
    "name": "mood",
    "model": "gpt-4o-2024-08-06",
    "input": [
        {"type": "message", "role": "system", "content": {"type": "input_text", "text": "What is its mood?"}},
        {"type": "message", "role": "user", "content": {"type": "input_text", "text": "Text: {{item.response}}"}},
    ],
    "labels": ["positive", "neutral", "negative"],
    "passing_labels": ["positive"],
}
PYTHON = {
    "type": "python",
    "name": "fuzzy",
    "image_tag": "2025-05-08",
    "source": """
from rapidfuzz import fuzz, utils

def grade(sample: dict, item: dict) -> float:
    return fuzz.WRatio(sample["output_text"], item["label"], processor=utils.default_process) / 100
""",
}
MULTI = {
    "type": "multi",
    "name": "person",
    "graders": {
        "name": {**TEXT_SIMILARITY, **NAMES, "pass_threshold": 0.9},
        "email": {**STRING_CHECK, "input": "{{sample.output_json.email}}", "reference": "{{item.email}}"},
    },
    "calculate_output": "(name + email) / 2",
}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (types.StringCheckGrader, STRING_CHECK),
        (types.TextSimilarityGrader, TEXT_SIMILARITY),
        (types.ScoreModelGrader, SCORE_MODEL),
        (types.LabelModelGrader, LABEL_MODEL),
        (types.PythonGrader, PYTHON),
    ],
)
def test_these_graders_are_valid_for_the_library_and_so_is_what_it_writes(lab, kind, spec):
    written = kind.model_validate(spec).model_dump(exclude_none=True)
    assert lab.grader(written).__name__ == spec["name"]


@pytest.mark.parametrize("grader", [STRING_CHECK, TEXT_SIMILARITY, PYTHON])
def test_graders_without_a_model(lab, scored, grader):
    right, wrong = scored(lab.grader(grader), ["the brown bear sleeps", "12"], label="the brown bear sleeps")[0]
    assert right == pytest.approx(1.0)
    assert wrong < 0.5


def test_graders_that_ask_a_model(lab, scored):
    assert scored(lab.grader(SCORE_MODEL), ["a bear"], label="a bear")[0] == [0.8]
    assert scored(lab.grader(LABEL_MODEL), ["-"], response="Good!")[0] == [1.0]


def test_a_multigrader(lab, scored):
    answers = [json.dumps({"name": "Ada Lovelace", "email": e}) for e in ("ada@example.org", "a@example.org")] + [
        "no JSON"
    ]
    rewards, parts = scored(lab.grader(MULTI), answers, name="Ada Lovelace", email="ada@example.org")
    assert rewards == pytest.approx([1.0, 0.5, 0.0])
    assert parts[1] == {"name": 1.0, "email": 0.0}
