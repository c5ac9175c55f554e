"""Sample, score, train, and again: every round is a generation, and the same call goes on."""

import json
import math
import re
from itertools import cycle
from random import Random

import pytest

from rolloutlab import Judge
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.widgets import loop as render
from rolloutlab.widgets.loop import Best, Round

ROWS = [{"country": "France"}, {"country": "Peru"}]
BEST = "best lab/practice@0: held-out 0.250 with other seeds than it was chosen by"
NO_BEST = Best()
PROMPT = "Capital of {{country}}?"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


def by_place(trajectory, answer, messages, row):
    """A reward that always differs within a group."""
    return int(trajectory.name[-1]) / 2


def chance(trajectory, answer, messages, row):
    """A reward that says nothing, and is the same for the same seed and place."""
    return Random(f"{trajectory.name} {trajectory.sampling}").random()


def same(trajectory, answer, messages, row):
    return 1.0


def loop(session: Session, reward=by_place, lines=None, **options):
    given = {
        "over": ROWS,
        "n": 2,
        "jobs": 2,
        "max_tokens": 4,
        "seed": 1,
        "say": ([] if lines is None else lines).append,
    }
    return session.loop("capitals", PROMPT, reward, **{**given, **options})


def test_each_round_samples_the_newest_checkpoint_into_a_generation_and_trains_on_it(session):
    made = loop(session)
    assert made.history["step"].tolist() == [0, 1]
    assert made.history.index.tolist() == [1, 2]
    assert made.history["reward"].tolist() == [0.25, 0.25]
    assert made.history["spread"].tolist() == [0.25, 0.25]
    assert made.history["trained"].tolist() == [1.0, 1.0]
    assert made.history["held_out"].isna().all()
    assert made.history["tokens"].tolist() == [len(ROWS) * 2 * 4] * 2
    assert [t.step for t in session.collection("capitals:2").trajectories] == [1] * 4
    assert session.jobs()["collections"].tolist() == ["capitals", "capitals:1"]


@pytest.fixture
def asked(monkeypatch):
    """A judge in the place of a model: it likes what it is shown later. What it was asked."""
    requests: list[ChatRequest] = []

    async def answer(_http, _address, request: ChatRequest) -> ChatCompletion:
        requests.append(request)
        labels = dict.fromkeys(re.findall(r"completion (\w+)\]\]", request.messages[1].to_wire()["content"]))
        worth = {label: {"score": place / len(labels)} for place, label in enumerate(labels)}
        message = {"role": "assistant", "content": json.dumps(worth)}
        choice = {"finish_reason": "stop", "index": 0, "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": request.model, "choices": [choice]}
        return ChatCompletion.model_validate(body)

    monkeypatch.setattr("rolloutlab.scoring.judge.complete", answer)
    return requests


def test_a_judge_is_a_reward_of_a_loop(session, asked):
    made = loop(session, Judge("lab/judge", "The capital of {{country}}.", samples=1), n=3)
    assert made.history["trained"].tolist() == [1.0, 1.0]
    assert {t.source for t in session.collection("capitals").trajectories} == {"judge"}
    assert {request.model for request in asked} == {"lab/judge"}
    assert "The capital of France." in asked[0].to_json() + asked[1].to_json()
    assert made.best is None
    assert "best" not in repr(made)


def test_a_judge_that_only_likes_places_trains_nothing_in_a_loop(session, asked):
    made = loop(session, Judge("lab/judge"), n=3)
    assert made.history["trained"].tolist() == [0.0, 0.0]
    assert len(asked) == 2 * len(ROWS) * 2


def view(*rounds: Round, best=NO_BEST, changes=(), ended="") -> str:
    return render.html("capitals", "lab/practice", rounds, best, changes, ended)


def test_from_three_rounds_on_its_course_is_drawn_and_before_it_is_figures():
    rounds = [Round(i, i - 1, reward=0.2 * i, trained=i / 4, tokens=1000) for i in range(1, 4)]
    assert "<img" not in view(*rounds[:2])
    shown = view(*rounds)
    assert shown.count('<figure class="rl-chart">') == 2
    assert 'Mean reward</span> <span class="rl-value">0.600 <small>in round 3</small>' in shown
    assert "0.200 in round 1" in shown
    assert "%rewards capitals:3" in shown


def test_what_stopped_it_is_seen_first_and_then_what_to_do():
    stopped = "stopped by ServiceError; the same call goes on, in round 2"
    shown = view(Round(1, 0, reward=0.5, unscored=2), changes=["learning_rate 1 is high"], ended=stopped)
    assert shown.index("stopped by ServiceError</b> the same call goes on") < shown.index("2 without a reward")


def test_of_many_rounds_the_table_opens_by_a_click():
    assert "<summary" not in view(*(Round(i, i, reward=0.5) for i in range(12)))
    assert "13 rounds as a table" in view(*(Round(i, i, reward=0.5) for i in range(13)))


@pytest.mark.parametrize(
    ("reward", "options", "message"),
    [
        (Judge("lab/judge"), {"held_out": ROWS}, "its mean over held-out rows does not"),
        (Judge("lab/judge", samples=0), {}, "samples must be an integer ≥ 1, not 0"),
    ],
)
def test_a_judge_that_cannot_judge_a_loop_is_refused_before_anything_is_sampled(session, reward, options, message):
    with pytest.raises(InputError, match=message):
        loop(session, reward, **options)
    assert session.collections().empty


def test_a_round_whose_settings_are_of_another_version_is_shown(session):
    session.store.open_collection("capitals", {"model": "lab/practice", "temperature": 3.0})
    assert len(loop(session, jobs=0).rounds) == 1


def test_the_options_are_those_of_the_jobs(session):
    loop(session, jobs=1, options={"learning_rate": 1e-3})
    assert session.jobs()["options"].tolist() == ["learning_rate 0.001"]


def test_wrong_options_are_an_error_before_anything_is_sampled(session):
    with pytest.raises(InputError, match="epsilon: -1 is below 0"):
        loop(session, options={"epsilon": -1})
    assert session.collections().empty


def test_rows_may_differ_from_round_to_round(session):
    asked = []

    def rows(number: int):
        asked.append(number)
        return [{"country": f"Country {number}"}]

    loop(session, over=rows)
    assert asked == [1, 2]
    assert [t.prompt for t in session.collection("capitals:2").trajectories] == ["Capital of Country 2?"] * 2


def test_every_round_takes_the_same_rows_also_of_an_endless_iterator(session):
    loop(session, over=cycle(ROWS), held_out=iter(ROWS[:1]), limit=2)
    for label in ("capitals:1", "capitals:2"):
        assert [group.row for group in session.collection(label).groups] == ROWS
    assert {len(session.collection(f"held_out.capitals:{i}").groups) for i in (1, 2)} == {1}


def test_every_round_has_seeds_of_its_own_that_follow_from_the_first(session):
    loop(session)
    first, second = ({t.sampling["seed"] for t in session.collection(f"capitals:{i}").trajectories} for i in (1, 2))
    assert min(first) == 1_000_001
    assert min(second) == 2_000_001


def test_what_is_held_out_is_measured_alike_before_every_so_many_rounds_and_after_the_last(session):
    made = loop(session, jobs=3, every=2, held_out=ROWS[:1])
    history = made.history
    assert history.index.tolist() == [1, 2, 3, 4]
    assert history["held_out"].notna().tolist() == [True, False, True, True]
    assert history["step"].tolist() == [0, 1, 2, 3]
    assert history["reward"].notna().tolist() == [True, True, True, False]
    measured = [session.collection(f"held_out.capitals:{i}") for i in (1, 2, 3)]
    assert [t.sampling["seed"] for collection in measured for t in collection.trajectories] == [1] * 6
    assert not any("held_out" in names for names in session.jobs()["collections"])


def test_the_best_is_the_checkpoint_with_the_highest_held_out_mean(session):
    def later_is_worse(trajectory, answer, messages, row):
        return by_place(trajectory, answer, messages, row) - abs(trajectory.step - 1)

    assert loop(session, later_is_worse, jobs=2, every=1, held_out=ROWS).best == "lab/practice@1"


def test_the_best_is_measured_again_with_other_seeds_so_that_its_mean_is_no_maximum(session):
    """Rewards that are nothing but chance: what was highest of several means is chosen, and is not what is told."""
    lines: list[str] = []
    made = loop(session, chance, lines, jobs=3, every=1, held_out=ROWS, n=4)
    again = session.collection("best.capitals")
    assert {t.step for t in again.trajectories} == {made.best_step}
    assert made.best_mean == pytest.approx(again.mean_reward)
    chosen = {t.sampling["seed"] for t in session.collection("held_out.capitals").trajectories}
    assert chosen.isdisjoint(t.sampling["seed"] for t in again.trajectories)
    assert made.measured[made.best_step] == max(made.measured.values())
    assert (
        repr(made).splitlines()[0]
        == lines[-1]
        == (
            f"loop capitals on lab/practice: 3 rounds, best {made.best}: "
            f"held-out {made.best_mean:.3f} with other seeds than it was chosen by"
        )
    )
    assert loop(session, chance, jobs=0).best_mean == made.best_mean
    assert not any("best" in names for names in session.jobs()["collections"])


def test_without_held_out_rows_the_best_is_the_checkpoint_of_the_best_round(session):
    assert loop(session, lambda t, a, m, r: by_place(t, a, m, r) + t.step).best == "lab/practice@1"
    assert loop(session, jobs=0).best == "lab/practice@1"


def cells_of(html: str) -> list[list[str]]:
    """The texts of a table's cells, row by row."""
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", html)]


def test_the_same_call_goes_on_with_the_next_round(session):
    first = loop(session, every=1, held_out=ROWS)
    again = loop(session, jobs=0)
    columns = [column for column in first.history if column != "seconds"]
    assert again.history[columns].equals(first.history[columns])
    assert repr(again) == repr(first)
    assert loop(session, jobs=1).history.index.tolist() == [1, 2, 3]


def test_before_the_first_round_there_is_nothing_to_tell(session):
    made = loop(session, jobs=0)
    assert made.history.empty
    assert made.best is None
    assert repr(made) == "loop capitals on lab/practice: 0 rounds\nwhat it trains on  -"
    assert "<b>loop capitals</b>" in made._repr_html_()
    assert "on lab/practice · 0 rounds" in made._repr_html_()
    assert "<table" not in made._repr_html_()


def test_a_round_in_which_nothing_trains_is_kept_and_the_loop_goes_on(session):
    rewards = iter([same, by_place, same])
    present = {}

    def alternating(trajectory, answer, messages, row):
        generation = session.store.collection("capitals").generation
        if generation not in present:
            present[generation] = next(rewards)
        return present[generation](trajectory, answer, messages, row)

    made = loop(session, alternating, jobs=3)
    assert made.history["trained"].tolist() == [0.0, 1.0, 0.0]
    assert made.history["step"].tolist() == [0, 0, 1]
    assert made.ended == ""


def test_when_nothing_trains_several_times_in_a_row_the_loop_ends_and_says_why(session):
    lines = []
    made = loop(session, same, lines, jobs=9, patience=2)
    assert len(made.history) == 2
    assert made.ended.startswith("nothing trained in 2 rounds in a row: 4 left out: all rewards of the group are equal")
    assert made.ended in repr(made)
    assert made.ended in made._repr_html_()
    assert session.jobs().empty


def test_an_interrupt_keeps_what_is_there_and_the_same_call_goes_on(session):
    lines = []

    def interrupted(trajectory, answer, messages, row):
        if trajectory.step == 1:
            raise KeyboardInterrupt
        return by_place(trajectory, answer, messages, row)

    with pytest.raises(KeyboardInterrupt) as stopped:
        session.loop("capitals", PROMPT, interrupted, over=ROWS, n=2, jobs=5, max_tokens=4, say=lines.append)
    assert lines[-1] == "stopped by KeyboardInterrupt; the same call goes on, in round 2"
    assert stopped.value._render_traceback_()[1] == "  -> the same call goes on, in round 2"
    assert len(session.collection("capitals:2")) == 4
    made = loop(session, jobs=1)
    assert made.history.index.tolist() == [1, 2, 3]
    measured = made.history[["earlier_reward", "reward"]].notna().values.tolist()  # by two functions
    assert measured == [[True, False], [False, False], [False, True]]


def test_every_round_is_a_line_where_no_chart_can_be_shown(session):
    lines = []
    session.loop(
        "capitals", PROMPT, by_place, over=ROWS, n=2, jobs=2, held_out=ROWS, max_tokens=4, every=2, say=lines.append
    )
    assert lines == [
        "round 1  step 0  mean reward 0.250  100% of groups trained  held-out 0.250",
        "round 2  step 1  mean reward 0.250  100% of groups trained",
        "round 3  step 2  held-out 0.250",
        f"loop capitals on lab/practice: 2 rounds, {BEST}",
    ]


def test_held_out_completions_that_the_function_failed_on_are_counted(session):
    def fails_held_out(trajectory, answer, messages, row):
        if trajectory.name.startswith("held_out") and trajectory.name.endswith("/1"):
            raise ValueError("no score")
        return by_place(trajectory, answer, messages, row)

    lines = []
    made = loop(session, fails_held_out, lines, jobs=1, held_out=ROWS)
    failed = "2 held-out without a reward, left out: the function failed on them"
    assert lines[0].endswith(f"held-out 0.000  {failed}")
    assert failed.replace("2", "4", 1) in repr(made)
    assert failed.replace("2", "4", 1) in made._repr_html_()
    assert failed.replace("2", "6", 1) in repr(loop(session, fails_held_out, jobs=1, held_out=ROWS))


def test_it_shows_a_chart_and_a_table_without_times(session):
    made = loop(session, held_out=ROWS)
    assert repr(made).splitlines() == [
        f"loop capitals on lab/practice: 2 rounds, {BEST}",
        "what it trains on  ▁▁  0.25 -> 0.25",
        "held out           ▁▁  0.25 -> 0.25",
    ]
    shown = made._repr_html_()
    assert "<img" not in shown  # two rounds are figures
    assert cells_of(shown)[2][:5] == ["2", "1", "0.250", "100%", ""]
    assert all(math.isfinite(second) for second in made.history["seconds"].dropna())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": 0}, "every must be an integer ≥ 1, not 0"),
        ({"patience": 0}, "patience must be an integer ≥ 1, not 0"),
        ({"jobs": -1}, "jobs must be an integer ≥ 0, not -1"),
        ({"jobs": 1.5}, "jobs must be an integer ≥ 0, not 1.5"),
        ({"temprature": 0.5}, "there is no setting 'temprature'"),
        ({"model": "lab/other"}, "a loop samples the model that it trains"),
        ({"temperature": 9}, "temperature: 9 is outside 0 to 2"),
        ({"held_out": []}, "no rows"),
        ({"over": [{"city": "Lima"}]}, "is neither a column nor a variable"),
        ({"reward": 3}, "3 is not a reward function"),
    ],
)
def test_wrong_arguments_are_an_error_before_anything_is_sampled(session, wrong, message):
    lines = []
    with pytest.raises(InputError, match=message):
        loop(session, lines=lines, **wrong)
    assert lines == []
    assert session.collections().empty


def test_a_wrong_name_is_an_error_before_anything_is_sampled(session):
    with pytest.raises(InputError, match="not a valid collection name"):
        session.loop("two words", PROMPT, by_place, over=lambda _: ROWS)


def test_another_model_is_selected_and_not_given(session):
    with pytest.raises(InputError) as refused:
        loop(session, model="lab/other")
    assert refused.value.hint == "%model lab/other"


def test_what_the_same_call_would_meet_again_is_not_said_to_go_on(session):
    lines = []
    with pytest.raises(InputError):
        loop(session, lines=lines, over=lambda number: [])
    assert lines == ["stopped by InputError"]


def test_a_loop_that_goes_on_does_not_measure_a_checkpoint_again(session):
    loop(session, jobs=1, held_out=ROWS)
    made = loop(session, jobs=1, held_out=ROWS)
    assert made.history["held_out"].notna().tolist() == [True, True, True]
    assert made.history["step"].tolist() == [0, 1, 2]
    assert session.store.collection("held_out.capitals").generation == 3


def test_what_was_measured_before_counts_for_the_best_also_without_held_out_rows(session):
    def later_is_worse(trajectory, answer, messages, row):
        return by_place(trajectory, answer, messages, row) - abs(trajectory.step - 1)

    first = loop(session, later_is_worse, jobs=1, held_out=ROWS)
    assert first.best == "lab/practice@1"
    made = loop(session, later_is_worse, jobs=2)
    assert made.best == "lab/practice@1"
    assert made.history["held_out"].notna().tolist() == [True, True, False]


def late(trajectory, answer, messages, row):
    """A reward that the first two of a row do not differ in, and of France none do."""
    return float(row["country"] == "Peru" and trajectory.position == 2)


def test_groups_with_nothing_to_learn_are_topped_up_before_a_round_trains(session):
    lines = []
    made = loop(session, late, lines, jobs=1, top_up=3, held_out=ROWS, options={"learning_rate": 1e-3})
    groups = session.collection("capitals").groups
    assert [len(group.trajectories) for group in groups] == [6, 4]
    assert {t.step for group in groups for t in group.trajectories} == {0}
    assert made.history["trained"].tolist()[0] == 0.5
    assert made.history["topped_up"].tolist()[0] == 4 + 2
    assert made.history["tokens"].tolist()[0] == sum(t.tokens for group in groups for t in group.trajectories)
    assert made.history["reward"].tolist()[0] == 0.0  # of the first sampling: 1 of 10 is of no mean
    assert any("50% of groups trained  topped up by 6" in line for line in lines)
    assert "topped up by" in made._repr_html_()
    assert session.jobs()["status"].tolist() == ["succeeded"]
    assert [each.trajectories for each in session.store.collections() if each.name == "held_out.capitals"] == [4, 4]


def test_a_judge_scores_a_group_that_was_topped_up_as_a_whole(session, asked):
    made = loop(session, Judge("lab/judge"), n=3, jobs=1, top_up=2)
    groups = session.collection("capitals").groups
    assert [len(group.trajectories) for group in groups] == [6, 6]
    assert all(t.reward is not None for group in groups for t in group.trajectories)
    assert len(asked) == 2 * len(ROWS) * 2
    assert made.history["topped_up"].tolist() == [6]


def test_a_loop_without_top_up_has_no_column_of_it(session):
    assert "topped_up" not in loop(session, jobs=1, top_up=2).history


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (1, "a number above 1, up to 10,000, not 1"),
        ("2", "not '2'"),
        (True, "not True"),
        (1.2, "1.2 times 2 completions"),
    ],
)
def test_a_wrong_factor_is_an_error_before_anything_is_sampled(session, factor, message):
    with pytest.raises(InputError, match=message):
        loop(session, top_up=factor)
    assert session.collections().empty


def test_options_may_be_a_function_of_the_round(session):
    asked, lines = [], []

    def scheduled(number):
        asked.append(number)
        return {"learning_rate": 2e-3 * 0.5**number, "epochs": 1}

    made = loop(session, jobs=2, lines=lines, options=scheduled)
    assert asked == [1, 2]
    assert [line.partition("learning_rate")[2] for line in lines if "round" in line] == [
        " 0.001  epochs 1",
        " 0.0005  epochs 1",
    ]
    assert made.history["learning_rate"].tolist() == [0.001, 0.0005]
    assert "epochs" not in made.history
    assert session.jobs()["options"].tolist() == ["learning_rate 0.0005, epochs 1", "learning_rate 0.001, epochs 1"]
    again = loop(session, jobs=1, options=scheduled)
    assert asked == [1, 2, 3]
    assert again.history["learning_rate"].tolist() == [0.001, 0.0005, 0.00025]
    assert "learning_rate: 0.001 in round 1, 0.00025 in round 3" in repr(again)
    assert cells_of(again._repr_html_())[0][-1] == "learning_rate"
    assert "Mean reward, by round" in again._repr_html_()
    assert "learning_rate: 0.001 in round 1, 0.00025 in round 3" in repr(loop(session, jobs=0))
    assert asked == [1, 2, 3]


def test_options_that_were_changed_between_two_calls_are_shown_by_round(session):
    loop(session, jobs=1, options={"learning_rate": 1e-3})
    made = loop(session, jobs=1, options={"algorithm": "rloo", "learning_rate": 1e-3})
    assert "learning_rate" not in made.history
    assert made.history["loss_aggregation"].fillna("").tolist() == ["", "constant"]


def test_the_groups_that_train_are_those_of_the_options_of_each_round(session):
    cut_off = {"mask_truncated": True}  # all answers of this policy are
    made = loop(session, jobs=2, options=lambda number: cut_off if number == 2 else {})
    assert made.history["trained"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda number: {"learning_rate": -1.0}, "learning_rate: -1.0"),
        (lambda number: {"lerning_rate": 1.0}, "lerning_rate"),
        (lambda number: 2e-3, r"options\(1\) returned a float, which is no options of a job"),
        (lambda number: None, r"options\(1\) returned a NoneType"),
        (
            lambda number: {"learning_rate": 1 / (number - 1)},
            r"options\(1\) raised ZeroDivisionError: division by zero",
        ),
        (lambda number, more: {}, r"options\(1\) raised TypeError"),
    ],
)
def test_wrong_options_of_the_first_round_are_an_error_before_anything_is_sampled(session, options, message):
    with pytest.raises(InputError, match=message):
        loop(session, options=options, held_out=ROWS)
    assert session.collections().empty


def test_wrong_options_of_a_later_round_end_the_loop_before_that_is_sampled(session):
    with pytest.raises(InputError, match="learning_rate: 'high'"):
        loop(session, jobs=3, options=lambda number: {"learning_rate": 1e-3 if number < 2 else "high"})
    assert [each.name for each in session.store.collections()] == ["capitals"]
    assert session.jobs()["options"].tolist() == ["learning_rate 0.001"]
