"""Reward functions get what their parameters name."""

import functools

import pytest

from rolloutlab.errors import InputError
from rolloutlab.scoring.calls import RewardCell, reward_call
from rolloutlab.trajectories.first_reward import NAMES

COLUMNS = ["country", "capital", "info", "answer"]


@pytest.fixture
def members(lab, collect):
    collect(1, 2, info={"level": 3})
    (group,) = lab.collection("capitals").groups
    return group


def called(function, group, columns=("country", "capital", "info")):
    """What a function gets and returns for the first trajectory, or for the group."""
    call = reward_call("", function, list(columns))
    some = group.trajectories[:1] if call.per == "trajectory" else group.trajectories
    arguments = call.arguments(some, group)
    return call.function(*arguments.positional, **arguments.by_name)


def test_any_names_and_columns_in_any_order(members):
    assert called(lambda capital, answer: (capital, answer), members) == ("a0", "a0")
    assert called(lambda country: country, members) == 0
    assert called(lambda info, reasoning: (info, reasoning), members) == ({"level": 3}, "")
    assert called(lambda row: row["capital"], members) == "a0"


def test_prompt_and_completion_are_messages(members):
    prompt, completion = called(lambda prompt, completion: (prompt, completion), members)
    assert [message["role"] for message in prompt] == ["user"]
    assert [message["content"] for message in completion] == ["a0"]


def test_more_names_get_every_column(members):
    assert called(lambda answer, **columns: columns, members) == {"country": 0, "capital": "a0", "info": {"level": 3}}


def test_a_default_that_names_nothing_stays(members):
    assert called(lambda answer, scale=2, capital=None: (scale, capital), members) == (2, "a0")


@pytest.mark.parametrize(
    "function",
    [
        lambda trajectory, answer, messages, row: (trajectory.name, answer, len(messages), row["capital"]),
        lambda t, a, m, r: (t.name, a, len(m), r["capital"]),
        lambda t, answer, ms, row: (t.name, answer, len(ms), row["capital"]),
        lambda trajectory, completion, messages, row: (trajectory.name, completion, len(messages), row["capital"]),
        lambda *four: (four[0].name, four[1], len(four[2]), four[3]["capital"]),
        lambda trajectory, *others: (trajectory.name, others[0], len(others[1]), others[2]["capital"]),
        lambda t, a, m, r, scale=1: (t.name, a, len(m), r["capital"]),
        lambda t, country, m, r: (t.name, country, len(m), r["capital"]),
    ],
)
def test_functions_of_four_positional_arguments_stay_valid_whatever_their_names(members, function):
    assert called(function, members) == ("capitals/0/0", "a0", 2, "a0")


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (lambda trajectory, answer, messages, scale=0.5: (answer, len(messages), scale), ("a0", 2, 0.5)),
        (lambda answer, scale=1, offset=2, power=3: (answer, scale, offset, power), ("a0", 1, 2, 3)),
        (lambda a=1, b=2, c=3, d=4: (a, b, c, d), (1, 2, 3, 4)),
        (lambda trajectory, answer, messages, row=None: row["capital"], "a0"),
        (lambda prompt, answer, messages, row: (prompt[0]["role"], answer, len(messages)), ("user", "a0", 2)),
    ],
)
def test_a_function_of_four_known_parameters_is_called_by_name(members, function, result):
    assert called(function, members) == result


def test_a_default_of_an_own_first_parameter_makes_none_of_them_positional():
    with pytest.raises(InputError, match="has a parameter 'x', which is neither a known argument nor a column"):
        reward_call("", lambda x, threshold=1, b=2, c=3: 0, ["capital"])


def test_positional_only_parameters_keep_their_places(members):
    def f(answer, scale=2, capital=None, /, *, country):
        return answer, scale, capital, country

    assert called(f, members) == ("a0", 2, "a0", 0)


def test_what_a_partial_gives_precedes_columns_and_names(members):
    def f(answer, capital, prompt=None, **columns):
        return answer, capital, prompt, sorted(columns)

    bound = functools.partial(f, capital="Lima", prompt="?", country="Peru")
    assert called(bound, members) == ("a0", "Lima", "?", ["country", "info"])
    assert reward_call("", functools.partial(lambda answer, group: 0.0, group=1), []).per == "trajectory"


def test_functions_of_all_kinds_have_parameters(members):
    class Right:
        def __call__(self, answer, capital):
            return answer == capital

        def method(self, answer, capital):
            return answer == capital

    def scaled(answer, capital, by):
        return by * (answer == capital)

    assert called(Right(), members)
    assert called(Right().method, members)
    assert called(functools.partial(scaled, by=2), members) == 2


def test_coroutine_functions_are_recognized():
    class Waits:
        async def __call__(self, answer):
            return 1.0

    async def waits(answer):
        return 1.0

    for function in (waits, Waits(), functools.partial(waits)):
        assert reward_call("", function, []).asynchronous
    assert not reward_call("", lambda answer: 1.0, []).asynchronous


def test_a_function_of_a_group_or_of_answers_gets_all_members(members):
    assert called(lambda answers: answers, members) == ["a0", "wrong"]
    assert called(lambda group, capital: [t.answer == capital for t in group], members) == [True, False]
    assert reward_call("", lambda answers, prompt: 0, []).per == "group"


@pytest.mark.parametrize(
    ("function", "message", "hint"),
    [
        (
            lambda answer, captial: 0,
            "has a parameter 'captial', which is neither a known argument nor a column",
            "capital",
        ),
        (lambda answer, zzz: 0, "has a parameter 'zzz'", "zzz=None"),
        (lambda group, answer: 0, "is called once per group, so it cannot take 'answer'", "answers"),
        (lambda answer, capital, country, typo: 0, "has a parameter 'typo'", "typo=None"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_what_there_is(function, message, hint):
    with pytest.raises(InputError) as error:
        reward_call("", function, ["country", "capital"])
    assert message in error.value.message
    assert "capital" in error.value.message.partition("available: ")[2]
    assert hint in error.value.hint


def parameters(body, variables=None, columns=COLUMNS):
    return RewardCell(body, variables or {}).parameters(NAMES, columns)


def test_a_cell_gets_the_names_that_it_uses():
    assert parameters("return float(answer == capital)") == ["answer", "capital"]
    assert parameters("return len(reasoning) + len(row)") == ["reasoning", "row"]


def test_in_a_cell_a_column_precedes_a_variable_and_a_variable_precedes_new_names():
    variables = {"capital": "?", "prompt": "?"}
    cell = RewardCell("return len(prompt) + (answer == capital)", variables)
    assert cell.parameters(NAMES, ["capital"]) == ["answer", "capital"]
    assert cell.shadowed(NAMES, ["capital"]) == [
        "capital is the column of the row, not the variable of the notebook",
        "prompt is the variable of the notebook, not what a trajectory has",
    ]
    assert cell.parameters(NAMES, ["capital", "prompt"]) == ["answer", "capital"]


def test_a_cell_of_before_may_have_variables_of_its_own_with_new_names():
    assert parameters("answers = row['answers']\nreturn answer in answers") == ["row", "answer"]
    assert parameters("group = 1\nreturn float(group)") == []
    assert parameters("answer = answer.strip()\nreturn len(answer)") == ["answer"]


def test_a_cell_may_wait():
    made = RewardCell("import asyncio\nawait asyncio.sleep(0)\nreturn len(answer)", {}).compiled(NAMES, [])
    assert reward_call("", made, []).asynchronous


def test_a_cell_may_wait_in_a_comprehension_and_what_a_function_within_it_awaits_is_its_own():
    made = RewardCell("return [each async for each in row['source']]", {}).compiled(NAMES, [])
    assert reward_call("", made, []).asynchronous
    inner = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 1.0\nreturn asyncio.run(f())"
    made = RewardCell(inner, {}).compiled(NAMES, [])
    assert not reward_call("", made, []).asynchronous
    assert made() == 1.0


def test_a_name_of_a_trajectory_that_is_a_column_too_is_noted():
    note = 'answer is that of the trajectory, not the column, which is row["answer"]'
    assert reward_call("", lambda answer: 1.0, ["answer", "question"]).note == note
    assert reward_call("", lambda answer, answers: [1.0], ["answer"]).note == note
    assert reward_call("", lambda answer: 1.0, ["question"]).note == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_a_hint_keeps_clear_of_is_an_argument(name):
    assert reward_call("f", eval(f"lambda {name}: 1.0"), [])
