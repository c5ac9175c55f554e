"""The loop and the comparison of checkpoints on rollouts of a program, with a policy that trains."""

import json
import sys

import pytest

from rolloutlab.errors import InputError

ROWS = [{"letter": "e"}, {"letter": "o"}]
SETTINGS = {"n": 4, "seed": 1, "max_tokens": 6}


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


def length(answer):
    return float(len(answer))


async def letters(row, client):
    """Two turns; a reward for each letter of the row in an answer."""
    messages, right = [], 0
    for text in (f"say {row['letter']}", "more"):
        messages.append({"role": "user", "content": text})
        answer = await client.chat.completions.create(messages=messages)
        messages.append(answer.choices[0].message)
        right += (messages[-1].content or "").count(row["letter"])
    return {"right": right}


async def silent(row, client):
    await letters(row, client)


def test_a_loop_plays_a_program_and_trains_on_the_rewards_that_it_returns(session):
    loop = session.loop("letters", solve=letters, over=ROWS, held_out=ROWS, jobs=2, every=1, **SETTINGS)
    made = [each for each in session.store.collections() if each.name == "letters"]
    assert [(each.scored, each.plan["program"]) for each in made] == [(8, "letters")] * 2
    assert [each.step for each in loop.rounds] == [0, 1, 2]
    assert all(one.held_out is not None for one in loop.rounds)
    assert [t.step for t in session.collection("letters:2").trajectories] == [1] * 8
    first = session.collection("letters:1").trajectories[0]
    assert (first.source, first.reward, len(first.choices)) == ("function", first.components["right"], 2)
    assert all(t.tokens <= 12 for t in session.collection("held_out.letters").trajectories)


def test_each_round_has_other_seeds_and_the_held_out_rows_have_the_same(session):
    session.loop("letters", "", length, solve=silent, over=ROWS, held_out=ROWS, jobs=2, every=1, **SETTINGS)
    seeds = {label: session.collection(label).stored.plan["seed"] for label in ("letters:1", "letters:2")}
    assert seeds["letters:1"] != seeds["letters:2"]
    measured = [each for each in session.store.collections() if each.name == "held_out.letters"]
    assert len(measured) > 1
    assert len({each.plan["seed"] for each in measured}) == 1


def test_a_loop_scores_what_a_program_leaves_open(session):
    loop = session.loop("letters", "", length, solve=silent, over=ROWS, jobs=1, **SETTINGS)
    assert loop.rounds[0].reward == session.collection("letters").mean_reward > 0


def test_a_loop_goes_on_with_the_program_that_it_began_with(session):
    session.loop("letters", solve=letters, over=ROWS, jobs=1, **SETTINGS)
    with pytest.raises(InputError, match="letters was captured from the program letters") as caught:
        session.loop("letters", solve=silent, over=ROWS, jobs=1, **SETTINGS)
    assert caught.value.hint == "solve=letters"
    with pytest.raises(InputError, match="letters was captured from the program letters"):
        session.loop("letters", "user: say", len, over=ROWS, jobs=1, **SETTINGS)
    assert session.loop("letters", solve=letters, over=ROWS, jobs=1, **SETTINGS).history.index.tolist() == [1, 2]
    assert len(session.loop("letters", solve=letters, jobs=0, **SETTINGS).rounds) == 2


def says(row):
    """An environment."""
    yield "say"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"solve": lambda row: 1}, "called with a row and a client"),
        ({"prompt": "user: say"}, "by a prompt or by a program"),
        ({"env": says}, "no setting 'env'"),
        ({"resume": True}, "no setting 'resume'"),
        ({"temperature": 9}, "temperature: 9 is outside 0 to 2"),
        ({"over": []}, "no rows"),
    ],
)
def test_what_no_program_can_be_played_with_is_refused_before_it_is_called(session, wrong, message):
    async def never(row, client):
        raise AssertionError

    with pytest.raises(InputError, match=message):
        session.loop("letters", **{"solve": never, "over": ROWS, **SETTINGS, **wrong})
    assert session.collections().empty


def test_a_command_is_played_in_a_loop(session):
    code = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
body = json.dumps({"messages": [{"role": "user", "content": row["letter"]}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=240) as answer:
    print(len(json.load(answer)["choices"][0]["message"]["content"]))
"""
    loop = session.loop("letters", solve=[sys.executable, "-I", "-S", "-c", code], over=ROWS[:1], jobs=1, **SETTINGS)
    assert loop.rounds[0].reward is not None
    assert json.dumps(session.collection("letters").stored.plan["program"])


def test_the_collections_of_a_loop_are_compared_by_playing_the_program_again(session):
    session.loop("letters", solve=letters, over=ROWS, jobs=1, **SETTINGS)
    comparison = session.compare("letters", over=[{"letter": letter} for letter in "aixy"])
    assert len(comparison.pairs) == 4
    assert session.collection("compare.letters.lab.practice.step1").stored.plan["program"] == "letters"


def test_a_loop_tops_up_with_rollouts_of_its_program(session):
    played = []

    async def counted(row, client):
        await client.chat.completions.create(messages=[{"role": "user", "content": "say"}])
        played.append(row)
        return float(len(played) > 4)

    loop = session.loop("letters", solve=counted, over=ROWS[:1], jobs=1, top_up=2, **SETTINGS)
    assert loop.history["topped_up"].tolist() == [4]
    assert loop.history["trained"].tolist() == [1.0]
