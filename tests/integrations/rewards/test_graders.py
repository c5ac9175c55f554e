"""OpenAI graders: their JSON as reward functions, with what the guide leaves open, odd fields and hostile templates."""

import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.errors import InputError, NotFoundError, RewardError
from rolloutlab.integrations.openai_graders.formula import Formula
from rolloutlab.integrations.openai_graders.similarity import similarity
from rolloutlab.integrations.openai_graders.templates import Template
from rolloutlab.session import Session
from rolloutlab.settings import Address, Price, Settings
from rolloutlab.store.models import NewGroup
from tests.labs import lab_with

CHECK = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.label}}", "operation": "eq"}
SCORE = {
    "type": "score_model",
    "name": "close",
    "model": "judge",
    "input": [{"role": "user", "content": "Right: {{item.label}}. Given: {{sample.output_text}}."}],
}
LABEL = {
    "type": "label_model",
    "model": "judge",
    "input": [{"role": "user", "content": {"type": "input_text", "text": "{{sample.output_text}}"}}],
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}


class Model:
    """A service with one model, whose answers are given one after another; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[str] = ['{"result": 1}']
        self.requests: list[dict[str, Any]] = []
        self.has_usage = True

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        if body["model"] != "judge":
            return httpx.Response(404, json={"error": {"message": "no such model"}})
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge"}
        return httpx.Response(200, json={**head, "choices": [choice], **({"usage": usage} if self.has_usage else {})})


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def lab(tmp_path, model):
    http = HttpClient(httpx.MockTransport(model), backoff=0)
    session = Session(
        Settings(home=tmp_path, service=Address("http://judge.example", "http://judge.example/v1")), http=http
    )
    yield session
    session.close()
    http.close()


@pytest.fixture
def grade(lab):
    """The reward and the components of one answer by a grader."""

    def grade(grader: Any, answer: Any = "Lima", model: str | None = None, **row: Any):
        message = answer if isinstance(answer, dict) else {"content": answer}
        raw = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", **message}}
        prompts = [NewGroup([UserMessage(role="user", content="?")], {"label": "Lima", **row})]
        lab_with(lab.store, [Choice.model_validate(raw)], name="capitals", prompts=prompts)
        lab.reward("capitals", lab.grader(grader, model=model), concurrency=1, say=lambda _: None)
        (trajectory,) = lab.collection("capitals").trajectories
        return trajectory.reward, dict(trajectory.components)

    return grade


@pytest.mark.parametrize(
    ("operation", "answer", "reference", "reward"),
    [
        ("eq", "Lima", "Lima", 1.0),
        ("eq", "lima", "Lima", 0.0),
        ("ne", "Cusco", "Lima", 1.0),
        ("neq", "Lima", "Lima", 0.0),
        ("like", "It is Lima.", "Lima", 1.0),
        ("like", "It is lima.", "Lima", 0.0),
        ("ilike", "It is LIMA.", "lima", 1.0),
        ("ilike", "STRASSE", "straße", 1.0),
    ],
)
def test_string_check(grade, operation, answer, reference, reward):
    assert grade({**CHECK, "operation": operation, "reference": reference}, answer) == (reward, {})


def test_a_grader_is_a_mapping_a_text_or_a_file(lab, grade, tmp_path):
    file = tmp_path / "grader.json"
    file.write_text(json.dumps(CHECK))
    assert grade(CHECK)[0] == grade(json.dumps(CHECK))[0] == grade(file)[0] == grade(str(file))[0] == 1.0


def test_a_byte_order_mark_is_no_part_of_a_grader(grade, tmp_path):
    file = tmp_path / "grader.json"
    file.write_text(json.dumps(CHECK), "utf-8-sig")
    assert grade(file)[0] == grade(f"\ufeff{json.dumps(CHECK)}")[0] == 1.0


def test_two_graders_of_one_name_are_an_error_in_a_list_and_in_json(lab):
    spec = {"type": "multi", "calculate_output": "exact", "graders": [{**CHECK, "name": "exact"}] * 2}
    with pytest.raises(InputError, match=r"each grader of a list needs a name of its own, not \['exact', 'exact'\]"):
        lab.grader(spec)
    with pytest.raises(InputError, match=r"needs a name of its own, not \['exact', ''\]"):
        lab.grader({**spec, "graders": [{**CHECK, "name": "exact"}, CHECK]})
    check = json.dumps(CHECK)
    twice = f'{{"type": "multi", "calculate_output": "exact", "graders": {{"exact": {check}, "exact": {check}}}}}'
    with pytest.raises(InputError, match="the grader is not JSON: 'exact' is there twice"):
        lab.grader(twice)


def tried(lab: Session, grader: Any, groups: int = 10) -> list[str]:
    """The lines of a dry run over that many rows."""
    answer = Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}}
    )
    prompts = [NewGroup([UserMessage(role="user", content="?")], {"label": "Lima"}) for _ in range(groups)]
    lab_with(lab.store, *[[answer]] * groups, name="capitals", prompts=prompts)
    lines: list[str] = []
    lab.reward("capitals", grader, dry_run=True, say=lines.append)
    return lines


def test_a_dry_run_gives_the_tokens_of_a_models_grader_and_where_to_put_prices(lab, model):
    model.answers = ["no JSON", '{"result": 1}']
    _, line = tried(lab, lab.grader(SCORE))
    assert len(model.requests) == 4  # one of the three trajectories needed a second
    assert line == (
        "judge took 400 + 28 tokens for 3 trajectories, or 1,334 + 94 tokens for 10"
        ' -> [prices."judge"] in the settings file, for dollars'
    )
    _, again = tried(lab, {"close": lab.grader(SCORE)}, groups=2)
    assert again.startswith("judge took 200 + 14 tokens for 2 trajectories, or 200 + 14 tokens for 2 ->")


def test_a_dry_run_gives_the_dollars_of_models_with_a_price_and_no_number_without_tokens(tmp_path, model):
    http = HttpClient(httpx.MockTransport(model), backoff=0)
    address = Address("http://judge.example", "http://judge.example/v1")
    session = Session(Settings(home=tmp_path, service=address, prices={"judge": Price(2.0, 10.0)}), http=http)
    grader = session.grader(SCORE)
    assert (
        tried(session, grader)[1]
        == "judge took 300 + 21 tokens for 3 trajectories, or 1,000 + 70 tokens for 10, $0.00270"
    )
    model.has_usage = False
    assert tried(session, grader)[1] == "judge was asked 3 times; the service reports no tokens"
    assert len(tried(session, session.grader(CHECK))) == 1
    session.close()
    http.close()


def test_valid_but_odd_fields_are_taken(grade):
    python = {"type": "python", "source": "def grade(sample, item): return 1", "image_tag": "2025-05-08"}
    assert grade({**CHECK, "name": "", "id": "grader_1"})[0] == 1.0
    assert grade(python)[0] == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "string_chek"}, "not a type of graders"),
        ({}, "not a type of graders"),
        ([], "is a mapping, not list"),
        (None, "is a mapping, not NoneType"),
        ("{", "not JSON"),
        ("no/such/file.json", "cannot be read"),
        ({k: v for k, v in CHECK.items() if k != "reference"}, "needs 'reference'"),
        ({**CHECK, "refrence": ""}, "'refrence' is not a field"),
        ({**CHECK, "operation": "almost"}, "not an operation"),
        ({**CHECK, "operation": ["eq"]}, "not an operation"),
        ({**CHECK, "input": ["x"]}, "must be a string"),
        ({**CHECK, "type": "text_similarity"}, "needs 'evaluation_metric'"),
        ({"type": "text_similarity", "input": "", "reference": "", "evaluation_metric": "cosine"}, "embeddings"),
        (
            {"type": "text_similarity", "input": "", "reference": "", "evaluation_metric": "bert"},
            "not an evaluation_metric",
        ),
        ({**SCORE, "range": [1, 0]}, "lower one first"),
        ({**SCORE, "range": 1}, "two numbers"),
        ({**SCORE, "input": "x"}, "needs a model and messages"),
        ({**SCORE, "input": [{"role": "tool", "content": ""}]}, "not an input message"),
        ({**SCORE, "input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "not a part"),
        ({**SCORE, "sampling_params": {"top_k": 1}}, "not a sampling parameter"),
        ({**LABEL, "passing_labels": ["fine"]}, "'fine' is not in labels"),
        ({**LABEL, "labels": []}, "lists of strings"),
        ({"type": "python", "source": "def grade(:"}, "not Python"),
        ({"type": "python", "source": "#" * 300_000}, "must be Python"),
        ({"type": "multi", "graders": {}, "calculate_output": "1"}, "object of graders"),
        ({"type": "multi", "graders": {"m": {"type": "multi"}}, "calculate_output": "m"}, "'multi' is not a type"),
        ({"type": "multi", "graders": {"a": CHECK}, "calculate_output": "a + b"}, "'b', which is no grader"),
    ],
)
def test_what_is_no_grader_is_refused_with_what_is_supported(lab, wrong, message):
    with pytest.raises(InputError, match=message) as raised:
        lab.grader(wrong)
    assert raised.value.hint


# Templates


def test_parts_of_a_sample_and_of_a_row_go_into_a_template(grade):
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    check = {
        **CHECK,
        "input": "{{ sample.output_tools[0].function.name }}/{{item.tags[1]['a b']}}/{{item.n}}/{{item.t}}",
    }
    answer = {"content": None, "tool_calls": [call]}
    row = {"tags": [0, {"a b": [1, "é"]}], "n": 3, "t": True}
    assert grade({**check, "reference": 'find/[1, "é"]/3/true'}, answer, **row)[0] == 1.0


def test_json_of_the_completion_is_read_and_what_it_lacks_is_the_lowest_score(grade):
    check = {**CHECK, "input": "{{sample.output_json.city.name}}"}
    assert grade(check, '{"city": {"name": "Lima"}}')[0] == 1.0
    assert grade(check, '{"city": "Lima"}')[0] == 0.0
    assert grade(check, "Lima, of course")[0] == 0.0
    assert grade({**check, "operation": "ne"}, "Lima, of course")[0] == 0.0


def test_a_column_that_does_not_exist_is_refused_and_one_that_a_row_lacks_is_an_error(lab, grade):
    with pytest.raises(InputError, match=r"item\.capital, which is not a column") as raised:
        grade({**CHECK, "reference": "{{item.capital}}"})
    assert raised.value.hint == "{{item.label}}"
    with pytest.raises(RewardError, match=r"has no item\.label\.deep"):
        grade({**CHECK, "reference": "{{item.label.deep}}"})


def test_a_completion_that_looks_like_a_template_is_a_text(grade):
    assert grade({**CHECK, "reference": "x{{item.label}}"}, "{{item.label}}")[0] == 0.0
    assert grade(CHECK, "{{item.secret}}", label="{{item.secret}}", secret="gold")[0] == 1.0


@pytest.mark.parametrize(
    "reference",
    ["answer", "item", "sample", "sample.secret", "item.__class__()", "item.x|upper", "item.x + 1", "item.x[-1]",
     "config.items()", "item['x", "", "item..x", "sample.output_text.upper()"],
)  # fmt: skip
def test_what_is_no_reference_is_refused_when_the_grader_is_made(reference):
    with pytest.raises(InputError, match="not a reference"):
        Template(f"{{{{{reference}}}}}")


@pytest.mark.parametrize(
    "path", ["__class__", "__class__.__mro__", "label.__len__", "label[0]", "list.append", "list[9]"]
)
def test_references_reach_values_alone_never_attributes(grade, path):
    with pytest.raises((InputError, RewardError), match=r"no column|not a column|has no item"):
        grade({**CHECK, "reference": f"{{{{item.{path}}}}}"}, list=[1])


@given(st.text(alphabet="ab.[]{}\"' 0_", max_size=20))
def test_any_text_is_a_template_or_is_refused(text):
    try:
        template = Template(text)
    except InputError:
        return
    assert template.references or template.fill({}) == text


# Similarity


@pytest.mark.parametrize(
    ("metric", "library"),
    [
        ("fuzzy_match", "rapidfuzz"),
        ("bleu", "nltk"),
        ("gleu", "nltk"),
        *[(f"rouge_{n}", "re") for n in "12345l"],
    ],
)
def test_similarity_is_one_for_the_same_text_and_less_for_another(grade, metric, library):
    pytest.importorskip(library)
    spec = {**CHECK, "type": "text_similarity", "evaluation_metric": metric}
    spec.pop("operation")
    words = "the quick brown fox jumps over the lazy dog"
    same, other = grade(spec, words, label=words)[0], grade(spec, "some cat sleeps under a tree", label=words)[0]
    assert same == pytest.approx(1.0)
    assert 0.0 <= other < 0.6
    assert grade(spec, "", label=words)[0] == pytest.approx(0.0)


def test_rouge_counts_common_n_grams_and_subsequences_of_words():
    """The example of Lin 2004, section 3.1, and repeated words, which count as often as both texts have them."""
    reference, text = "police killed the gunman", "the gunman kill police"
    assert similarity("rouge_1")(text, reference) == pytest.approx(3 / 4)
    assert similarity("rouge_2")(text, reference) == pytest.approx(1 / 3)
    assert similarity("rouge_l")("police kill the gunman", reference) == pytest.approx(3 / 4)
    assert similarity("rouge_l")(text, reference) == pytest.approx(2 / 4)
    assert similarity("rouge_1")("the the the", "The end.") == pytest.approx(2 / 5)
    assert similarity("rouge_5")("too few words", "too few words") == 0.0


def test_a_missing_library_says_what_to_install(lab, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rapidfuzz", None)
    with pytest.raises(InputError, match="fuzzy_match needs rapidfuzz") as raised:
        lab.grader({"type": "text_similarity", "input": "", "reference": "", "evaluation_metric": "fuzzy_match"})
    assert raised.value.hint == "%pip install rolloutlab[graders]"


def test_a_pass_threshold_is_a_component_that_does_not_count(grade):
    pytest.importorskip("rapidfuzz")
    spec = {**CHECK, "type": "text_similarity", "evaluation_metric": "fuzzy_match", "pass_threshold": 0.8}
    spec.pop("operation")
    reward, components = grade(spec, "Limaa")
    assert 0.8 < reward < 1
    assert components == {"passed": 1.0}
    assert grade(spec, "Cusco")[1] == {"passed": 0.0}


# Models


def test_a_model_scores_and_its_tokens_count_as_those_of_the_collection(lab, grade, model):
    model.answers = ['<think>hm {"result": 0}</think>{"steps": ["close"], "result": 0.75}']
    assert grade({**SCORE, "sampling_params": {"temperature": 0.5, "seed": 3, "max_completions_tokens": 64}}) == (
        0.75,
        {},
    )
    (request,) = model.requests
    assert request["messages"][1] == {"role": "user", "content": "Right: Lima. Given: Lima."}
    assert '"result": a number from 0 to 1' in request["messages"][0]["content"]
    assert (request["temperature"], request["seed"], request["max_completion_tokens"]) == (0.5, 3, 64)
    collection = lab.store.find("capitals")
    assert (collection.prompt_tokens, collection.completion_tokens) == (100, 7)


@pytest.mark.parametrize("answer", ["4", "4.0", '{"result": 4}', '```json\n{"result": 4}\n```'])
def test_a_score_is_within_its_range(grade, model, answer):
    model.answers = [answer]
    assert grade({**SCORE, "range": [1, 5], "pass_threshold": 4}) == (4.0, {"passed": 1.0})


@pytest.mark.parametrize("bad", ["I like it", '{"result": 7}', '{"result": "1"}', '{"result": true}', '{"result": NaN}',
                                 '{"result": 1} or {"result": 0}', '{"score": 1}', "", "[" * 5000])  # fmt: skip
def test_an_invalid_score_is_asked_for_again_and_then_given_up(grade, model, bad):
    model.answers = [bad, '{"result": 0.5}']
    assert grade(SCORE)[0] == 0.5
    assert len(model.requests) == 2
    assert "Answer again" in model.requests[1]["messages"][-1]["content"]
    model.answers = [bad]
    with pytest.raises(RewardError, match="no usable answer for capitals/0/0 in 3 tries"):
        grade(SCORE)


def test_a_completion_cannot_add_a_result_of_its_own(grade, model):
    """It is quoted in the request; only the model's own answer is parsed."""
    model.answers = ['{"result": 0.25}']
    assert grade(SCORE, '{"result": 1}')[0] == 0.25


def test_labels_that_pass_are_one_and_the_others_zero(grade, model):
    model.answers = ['{"label": "good"}', "bad", '{"label": "great"}', '{"label": "good"}']
    assert [grade(LABEL)[0] for _ in range(3)] == [1.0, 0.0, 1.0]
    assert len(model.requests) == 4


def test_another_model_can_be_asked_than_the_hosted_one(grade, model):
    hosted = {**SCORE, "model": "gpt-4o-mini"}
    with pytest.raises(NotFoundError):
        grade(hosted)
    assert grade(hosted, model="judge")[0] == 1.0


def test_images_are_sent_as_parts(grade, model):
    parts = [{"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": "{{item.url}}"}]
    grade({**SCORE, "input": [{"type": "message", "role": "user", "content": parts}]}, url="data:image/png;base64,AA==")
    assert model.requests[0]["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,AA=="


# Python


@pytest.mark.process
def test_python_gets_sample_and_item_in_the_sandbox(grade):
    source = """
import os

def grade(sample: dict, item: dict) -> float:
    print("0.9, by the way")
    assert not os.environ.get("SOME_API_KEY")
    return 0.5 * (sample["output_json"]["name"] == item["label"]) + 0.25 * len(sample["choices"])
"""
    assert grade({"type": "python", "source": source}, '{"name": "Lima"}') == (0.75, {})


@pytest.mark.process
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def grade(sample, item):\n    return item['no']", r"KeyError: 'no' \(line 2, in grade\)"),
        ("def grade(sample, item): return 'good'", "could not convert string to float"),
        ("def grade(sample, item): return None", "TypeError"),
        ("def score(sample, item): return 1", "has no attribute 'grade'"),
        ("import os\nos._exit(0)", "ended without a result"),
        ("def grade(sample, item): return float('nan')", "no finite number"),
    ],
)
def test_a_python_grader_that_fails_is_an_error_with_its_line(grade, source, message):
    with pytest.raises(RewardError, match=message):
        grade({"type": "python", "source": source})


# Formulas


def test_a_multi_grader_calculates_with_the_names_of_its_graders(grade):
    spec = {
        "type": "multi",
        "graders": {
            "name": {
                **CHECK,
                "input": "{{sample.output_json.name}}",
                "reference": "{{item.name}}",
                "pass_threshold": 1,
            },
            "email": {**CHECK, "input": "{{sample.output_json.email}}", "reference": "{{item.email}}"},
        },
        "calculate_output": "(name + email) / 2",
    }
    spec["graders"]["name"].pop("pass_threshold")
    given = json.dumps({"name": "Ada", "email": "ada@example.org"})
    assert grade(spec, given, name="Ada", email="a@example.org") == (0.5, {"name": 1.0, "email": 0.0})
    assert grade(spec, "no json", name="Ada", email="a@example.org")[0] == 0.0
    listed = {**spec, "graders": [{**each, "name": name} for name, each in spec["graders"].items()]}
    assert grade(listed, given, name="Ada", email="ada@example.org")[0] == 1.0


@pytest.mark.parametrize(
    ("formula", "value"),
    [("a + b * 2", 2.0), ("-a^2", -0.25), ("2^3^2 / 512", 1.0), ("max(a, b, 0.1) - min(a, b)", 0.25),
     ("floor(1.5) + ceil(1.5) + abs(-1) + sqrt(4)", 6.0), ("exp(log(3))", pytest.approx(3)), ("max(a)", 0.5),
     ("+a", 0.5), ("1e-3", 0.001)],
)  # fmt: skip
def test_formulas(formula, value):
    assert Formula(formula, ["a", "b"]).value({"a": 0.5, "b": 0.75}) == value


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "a.__class__", "a if b else 1", "[a]", "lambda: 1", "a[0]", "'x' * 9", "a and b", "a // b",
     "a % b", "a < b", "eval(a)", "max()", "max(*a)", "min(a, key=b)", "a := 1", "f'{a}'", "1; 2", "", "a b", "1e999",
     "True", "1j", "(" * 500 + "a" + ")" * 500, "-" * 1900 + "a", "a" * 5000, "9" * 1900, "sqrt", "0.5 * a + 0.5 * b)"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused_when_the_grader_is_made(text):
    with pytest.raises(InputError):
        Formula(text, ["a", "b"])


@pytest.mark.parametrize(
    "text", ["1 / (a - a)", "9^9^9^9", "(0 - 8)^0.5", "log(0)", "exp(1000)", "sqrt(0 - 1)", "1e200 * 1e200"]
)
def test_what_has_no_finite_value_is_an_error_of_the_trajectory(text):
    with pytest.raises(RewardError):
        Formula(text, ["a"]).value({"a": 1.0})


@given(
    st.recursive(
        st.sampled_from(["a", "b", "2", "0.5"]), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner)
    )
)
def test_a_formula_has_the_value_that_python_has(tree):
    def text(node):
        return node if isinstance(node, str) else f"({text(node[0])} {node[1]} {text(node[2])})"

    numbers = {"a": 3.0, "b": -1.5}
    try:
        expected = eval(text(tree), {}, numbers)
    except (ZeroDivisionError, OverflowError):
        expected = math.nan
    if len(text(tree)) > 2000:
        return
    formula = Formula(text(tree), list(numbers))
    if math.isfinite(expected):
        assert formula.value(numbers) == pytest.approx(expected)
    else:
        with pytest.raises(RewardError):
            formula.value(numbers)
