"""`%%chat --env`: what an environment does with answers, what is stored of it, and how episodes end."""

import pytest

from rolloutlab.errors import RewardError
from rolloutlab.magics.completion import Matcher
from tests.environments.conftest import notebook, policy  # noqa: F401  # fixtures
from tests.magics.conftest import bare  # noqa: F401
from tests.sampling_services import openai_error

GUESS = """
class GuessNumber:
    def __init__(self, row):
        self.target = row["target"]
    def reset(self, seed):
        return "Guess a number from 1 to 20."
    def step(self, answer):
        guess = int(answer)
        if guess == self.target:
            return Step("right", 1.0, done=True)
        return Step("higher" if guess < self.target else "lower", -0.1)
"""
CHAT = "%%chat guess -n 2 --over targets --env GuessNumber --max-turns 4\nsystem: Answer with one number."


def bisect(messages):
    """A policy that halves what is left."""
    low, high = 1, 20
    guesses = [(int(a["content"]), o["content"]) for a, o in zip(messages[2::2], messages[3::2], strict=True)]
    for guess, hint in guesses:
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
    return str((low + high) // 2)


@pytest.fixture
def guessing(notebook, policy):  # noqa: F811
    policy.answer = bisect
    notebook.run(GUESS)
    notebook.run('targets = [{"target": 7}, {"target": 10}, {"target": 20}]')
    return notebook


def test_an_environment_answers_each_turn_until_it_is_done(guessing):
    collection = guessing.run(CHAT)
    first = collection.groups[0].trajectories[0]
    assert [message["content"] for message in first.messages] == [
        "Answer with one number.", "Guess a number from 1 to 20.", "10", "lower", "5", "higher", "7", "right",
    ]  # fmt: skip
    assert [len(t.choices) for t in collection.trajectories] == [3, 3, 1, 1, 4, 4]


def test_the_name_of_a_plug_in_alone_is_told_from_a_variable(guessing):
    error = guessing.error("%%chat guess --env textarena")
    assert error == "InputError: textarena has several environments\n  -> --env textarena:NAME"
    assert "no variable 'Guess'" in guessing.error("%%chat guess --env Guess")


def test_each_turns_reward_is_stored_and_their_sum_is_the_reward(guessing):
    first, _, second, *_ = guessing.run(CHAT).trajectories
    assert first.extra["metrics"] == {"turn_reward/0": -0.1, "turn_reward/1": -0.1, "turn_reward/2": 1.0, "env": 0.8}
    assert (first.reward, first.components, first.source) == (0.8, {"env": 0.8}, "environment")
    assert (second.reward, second.components) == (1.0, {"env": 1.0})


def test_an_episode_ends_when_it_is_done_or_after_max_turns(guessing):
    trajectories = guessing.run(CHAT).trajectories
    assert [t.extra["metadata"]["episode_end"] for t in trajectories] == ["done"] * 4 + ["max_turns"] * 2
    assert trajectories[-1].reward == pytest.approx(-0.4)


def test_the_view_of_a_group_has_each_turns_reward_beside_the_turn(guessing):
    collection = guessing.run(CHAT)
    shown = guessing.run("%group guess/0")
    turns = shown._view.group(0)["group"]["members"][0]["turns"]
    assert [(turn["role"], turn["reward"]) for turn in turns] == [
        ("user", None), ("assistant", -0.1), ("user", None), ("assistant", -0.1), ("user", None), ("assistant", 1.0),
        ("user", None),
    ]  # fmt: skip
    assert "assistant: 10 (-0.1) user: lower assistant: 5 (-0.1)" in repr(shown)
    assert "Guess a number from 1 to 20." in repr(collection)
    assert "<b>assistant</b> 10<i> (-0.1)</i>" in shown._repr_html_()


def test_the_end_of_an_episode_is_visible_and_searchable(guessing):
    collection = guessing.run(CHAT)
    assert list(collection.to_frame()["episode_end"]) == ["done"] * 4 + ["max_turns"] * 2
    assert "[max_turns] assistant: 10" in repr(guessing.run("%group guess/2"))
    found = guessing.run("%search --where \"episode_end == 'max_turns' and environment == 'GuessNumber'\" -k 0")
    assert {hit.id for hit in found.hits} == {"guess:1/2/0", "guess:1/2/1"}
    assert len(guessing.run("%search --where \"reward == 0.8 and source == 'environment'\" -k 0").hits) == 2
    first_right = guessing.run('%search --where "`metric.turn_reward/0` == 1" -k 0')
    assert {hit.id for hit in first_right.hits} == {"guess:1/1/0", "guess:1/1/1"}


def test_a_reward_function_adds_components_to_what_the_environment_gave(guessing):
    guessing.run(CHAT)
    scored = guessing.run("%%reward guess\nreturn {'brief': 0.5}")
    first = scored.trajectories[0]
    assert (first.reward, first.components) == (pytest.approx(1.3), {"env": 0.8, "brief": 0.5})
    scored = guessing.run("%%reward guess --weight env=0\nreturn {'brief': 0.5}")
    assert scored.trajectories[0].reward == 0.5
    guessing.run("%rewards guess --undo")
    guessing.run("%rewards guess --undo")
    assert guessing.run("%group guess/0").trajectories[0].reward == 0.8


def test_a_reward_function_with_the_name_of_that_component_is_refused_before_a_call(guessing):
    guessing.run(CHAT)
    called = []

    def function(trajectory):
        called.append(trajectory)
        return 5.0

    for dry_run in (True, False):
        with pytest.raises(RewardError, match="'env' is the component of what the environment GuessNumber") as refused:
            guessing.lab.reward("guess", {"env": function}, dry_run=dry_run)
        assert refused.value.hint == "my_env: ..."
    assert called == []
    scored = guessing.lab.reward("guess", {"my_env": function}, say=lambda _: None)
    assert scored.groups[0].trajectories[0].components["my_env"] == 5.0


def test_an_export_keeps_the_rewards_of_turns_and_the_end(guessing, tmp_path):
    before = guessing.run(CHAT).trajectories
    guessing.run(f"%export guess {tmp_path}/guess.jsonl")
    after = guessing.run(f"%import {tmp_path}/guess.jsonl again").trajectories
    assert [(t.reward, t.components, t.source, t.extra, t.turn_rewards, t.episode_end) for t in after] == [
        (t.reward, t.components, t.source, t.extra, t.turn_rewards, t.episode_end) for t in before
    ]
    guessing.run(f"%export guess {tmp_path}/openai.jsonl --format openai")
    lines = (tmp_path / "openai.jsonl").read_text().splitlines()
    assert all('"role":"assistant","content":"' in line.rpartition("{")[2] for line in lines)


def test_a_job_gets_the_rewards_of_turns_as_metrics(guessing):
    sent = guessing.run(CHAT).trajectories[0].to_wire().to_wire()
    assert sent["metrics"]["turn_reward/2"] == 1.0
    assert sent["metadata"]["episode_end"] == "done"


def test_the_first_request_is_shown_without_sending_it(guessing, policy):  # noqa: F811
    policy.taken.clear()
    shown = guessing.run(CHAT.replace("%%chat guess", "%%chat guess --dry-run"))
    assert "Guess a number from 1 to 20." in repr(shown)
    assert (shown.requests, policy.taken) == (6, [])


def test_environments_of_one_group_have_one_seed_and_others_another(notebook):  # noqa: F811
    notebook.run("""
seen = []
class Once:
    def __init__(self, row): pass
    def reset(self, seed):
        seen.append(seed)
        return "go"
    def step(self, answer): return Step(None, 1, True)
""")
    for rows in ("--over range(2)", "--limit 2"):
        notebook.run(f"%%chat a -n 3 {rows} --env Once --seed 5\n")
        assert sorted(notebook["seen"]) == [5, 5, 5, 6, 6, 6]
        notebook["seen"].clear()


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("%%chat a --env Nothing\n", "there is no variable 'Nothing'"),
        ("%%chat a --env 3\n", "a int is not an environment"),
        ("%%chat a --env bandits:Two\n", "'bandits:Two' is not an environment"),
        ("%%chat a --env GuessNumber({'target':1})\n", "this is one GuessNumber, and each rollout needs its own"),
        ("%%chat a --env GuessNumber --over targets --env-timeout 0\n", "env_timeout: 0.0 is not above 0"),
        ("%%chat a --env GuessNumber --over targets\nuser: a\nassistant:\nuser: b", "no place for another"),
        ("%%chat a --env GuessNumber --over targets --prompt-column target\n", "is the prompt"),
        ("%%chat guess --continue --env GuessNumber\nuser: why?", "cannot take --env"),
    ],
)
def test_a_wrong_call_says_what_to_type(guessing, cell, problem):
    error = guessing.error(cell)
    assert problem in error
    assert "\n  -> " in error


def test_what_resumes_or_compares_needs_the_same_environment(guessing):
    guessing.run(CHAT)
    for cell in ("%%chat guess --resume", "%compare guess"):
        assert guessing.error(cell).endswith("-> --env GuessNumber")
    guessing.run("class Other(GuessNumber): pass")
    assert guessing.error("%%chat guess --resume --env Other").endswith("-> --env GuessNumber")
    guessing.run("%%chat plain\nuser: hi")
    assert guessing.error("%%chat plain --resume --env Other").endswith("-> leave --env out")


def test_an_answer_that_max_tokens_cuts_off_gets_its_reward_and_ends_the_episode(guessing, policy):  # noqa: F811
    policy.finish = "length"
    found, *_ = guessing.run(CHAT).trajectories
    assert (found.episode_end, found.turn_rewards) == ("length", [-0.1])


def test_a_context_that_is_full_ends_the_episode_with_the_rewards_so_far(guessing, policy):  # noqa: F811
    full = openai_error("This model's maximum context length is 8 tokens", code="context_length_exceeded")
    policy.refusal = lambda body: (400, full) if len(body["messages"]) > 4 else None
    found, *_ = guessing.run(CHAT).trajectories
    assert (found.episode_end, found.reward, found.turn_rewards) == ("context", -0.2, [-0.1, -0.1])
    assert found.messages[-1]["content"] == "higher"
    assert "maximum context length" in found.extra["logs"][-1]


def test_another_refusal_is_an_error_without_a_reward(guessing, policy):  # noqa: F811
    policy.refusal = lambda body: (400, openai_error("no such thing")) if len(body["messages"]) > 4 else None
    found, *_ = guessing.run(CHAT).trajectories
    assert (found.episode_end, found.reward) == ("error", None)


def test_episodes_whose_requests_fail_are_closed_and_played_at_a_resume(guessing, policy):  # noqa: F811
    guessing.run("closed = []\nGuessNumber.close = lambda self: closed.append(self.target)")
    policy.refusal = lambda body: (402, openai_error("no such thing")) if body.get("seed", 0) % 2 else None
    error = guessing.error(CHAT)
    assert "failed, the others are kept" in error
    assert error.endswith("-> %%chat guess:1 --resume --env GuessNumber")
    assert len(guessing["closed"]) == 6
    policy.refusal = lambda body: None
    assert len(guessing.run("%%chat guess:1 --resume --env GuessNumber").trajectories) == 6


def test_what_can_be_an_environment_is_completed(guessing):
    guessing.run("def short(row): yield 'a'\ndef plain(row): return 'a'\nclass Plain: pass")
    _, matches = Matcher(guessing.shell).complete("%%chat a --env ", 0, 15)
    assert {"GuessNumber", "short"} <= set(matches)
    assert {"plain", "Plain", "targets"}.isdisjoint(matches)


def test_a_source_brings_its_rows_and_its_seed(notebook):  # noqa: F811
    notebook.run("""
class Sums:
    name = "sums:easy"
    def rows(self, limit, seed): return [{"a": seed + i} for i in range(limit or 1)]
    def environment(self, row):
        def play(row):
            answer = yield f"{row['a']} + 1?"
            return float(answer == str(row["a"] + 1))
        from rolloutlab.environments.source import GeneratorEnvironment
        return GeneratorEnvironment(play, row)
sums = Sums()
""")
    collection = notebook.run("%%chat sums --env sums --limit 3 --seed 5\n")
    assert [t.row for t in collection.trajectories] == [{"a": 5}, {"a": 6}, {"a": 7}]
    assert [t.prompt for t in collection.trajectories] == ["5 + 1?", "6 + 1?", "7 + 1?"]
    assert notebook.lab.store.find("sums").plan["env"] == "sums:easy"


def test_the_table_of_rewards_has_the_first_observation_as_the_prompt(guessing):
    guessing.run(CHAT)
    frame = guessing.run("%rewards guess").to_frame()
    assert set(frame["prompt"]) == {"Guess a number from 1 to 20."}
    assert set(frame["source"]) == {"environment"}
