"""`credit: turn` from stored turn rewards: what the report, the dry run and the form say before anything is sent."""

import pytest

from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import Arrival, NewGroup, Score
from rolloutlab.training.submission import gather, prepare
from rolloutlab.widgets.dry_run import spread
from tests.labs import completion

TURN = {"credit": "turn", "scale_rewards": False}
# the table of docs/training.md: reward, turn rewards, tokens of each turn
EPISODES = [(4.0, [1.0, 0.0, 2.0], [2, 3, 5]), (1.0, [0.0, 1.0], [4, 1]), (1.0, [0.0], [10])]


@pytest.fixture
def lab(tmp_path):
    """A session without any service."""
    session = Session(Settings(home=tmp_path, policy="/nowhere/practice"))
    yield session
    session.close()


@pytest.fixture
def play(lab):
    """Stores a collection of one group of episodes; rewards of turns are those of the metrics."""

    def make(episodes, name="guess"):
        question = UserMessage(role="user", content="Guess.")
        [group] = lab.store.add_groups(lab.store.open_collection(name), [NewGroup([question], {})])
        for i, (_, rewards, tokens) in enumerate(episodes):
            items = [each for n in tokens for each in (completion("5", "a" * n), question)][:-1]
            metrics = {f"turn_reward/{k}": reward for k, reward in enumerate(rewards)}
            lab.store.put(
                group, [Arrival(i, items, extra={"metrics": metrics})], model="lab/practice", step=0, sampling={}
            )
        trajectories = lab.collection(name).trajectories
        lab.store.rewards.give([Score(t, e[0]) for t, e in zip(trajectories, episodes, strict=True)], "function")
        return lab.collection(name)

    return make


@pytest.fixture
def episodes(lab, play):
    """Two episodes of an environment with two turns each, of which one has a reward of 2."""
    group = play([]).groups[0]
    question = UserMessage(role="user", content="Guess.")
    for i, first in enumerate((2.0, 0.0)):
        metrics = {"turn_reward/0": first, "turn_reward/1": 0.0, "env": first}
        items = [completion("5", "aa"), question, completion("6", "aaa")]
        arrival = Arrival(i, items, extra={"metrics": metrics, "metadata": {"environment": "Guess"}})
        lab.store.put(group, [arrival], model="lab/practice", step=0, sampling={})
    return lab.collection("guess")


def test_a_dry_run_has_the_advantages_of_each_turn(lab, play):
    play(EPISODES)
    lines = repr(lab.check("guess", TURN)).splitlines()
    assert lines[1:5] == [
        "3 of 3 trajectories will train: 20 tokens in 1 of 1 group",
        "1 step of 1 group (3 completions, 20 tokens)",
        "turn 0 trains in 3 of 3 (16 tokens), turn 1 trains in 2 of 2 (4 tokens), turn 2 trains in 0 of 1 (0 tokens)",
        "credit: honoured by the embedded service, not in the specification of a hosted one",
    ]
    # 30/17 and 15/17 of the hand-computed table, with weights 4/3, 4/3 and 2/3
    assert lines[-3:] == [
        "  guess/0/0              4  advantage +1.76, +0.88, none x weight 1.33 on 5 of 10 tokens",
        "  guess/0/1              1  advantage -0.88, -0.88 x weight 1.33 on 5 of 5 tokens",
        "  guess/0/2              1  advantage -0.88 x weight 0.67 on 10 of 10 tokens",
    ]
    shown = lab.check("guess", TURN)._repr_html_()
    assert ">+1.76, +0.88, none</td>" in shown
    assert ">5 of 10</td>" in shown


def test_its_table_has_a_row_for_each_turn(lab, play):
    play(EPISODES)
    frame = lab.check("guess", TURN).to_frame()
    assert list(zip(frame.index, frame["turn"], frame["reward_to_go"], frame["tokens"], strict=True)) == [
        ("guess/0/0", 0, 4, 2),
        ("guess/0/0", 1, 3, 3),
        ("guess/0/0", 2, 3, 5),
        ("guess/0/1", 0, 1, 4),
        ("guess/0/1", 1, 1, 1),
        ("guess/0/2", 0, 1, 10),
    ]
    assert frame["advantage"].tolist() == pytest.approx([30 / 17, 15 / 17, 0, -15 / 17, -15 / 17, -15 / 17])
    assert frame["reason"].dropna().tolist() == ["no_turn_advantage"]
    trains = frame[frame["reason"].isna()]
    assert (trains["weight"] * trains["tokens"]).sum() == pytest.approx(20)
    assert "turn" not in lab.check("guess").to_frame()


def test_without_any_turn_rewards_it_is_an_error_that_says_what_to_type(lab, play):
    collection = play([(reward, [], [2]) for reward in (1.0, 0.0)])
    for submit in (gather, prepare):
        with pytest.raises(
            InputError, match="no trajectory of guess has turn rewards, the metrics turn_reward/0"
        ) as refused:
            submit([collection], {"credit": "turn"}, "lab/practice")
        assert refused.value.hint.startswith("credit: trajectory, or %%chat NAME --env ")
    with pytest.raises(InputError, match="no trajectory of guess has turn rewards"):
        lab.check("guess", {"credit": "turn"})
    assert lab.check("guess", {"credit": "trajectory"}).preflight.trainable_trajectories == 2


def test_trajectories_without_turn_rewards_among_others_are_counted(play):
    mixed = gather([play([*EPISODES, (2.0, [], [2])])], {"credit": "turn"}, "lab/practice")
    assert "1 trajectory without turn rewards: each of the turns gets the whole reward" in mixed.report()
    assert not any("without turn" in line for line in mixed.with_options({}).report())


def test_a_form_says_so_too_and_cannot_be_submitted(lab, play):
    play([(reward, [], [2]) for reward in (1.0, 0.0)])
    form = lab.train_form("guess")
    assert form.look({"credit": "turn"})["blocked"] == "nothing would train"
    assert "no trajectory of guess has turn rewards" in form.look({"credit": "turn"})["headline"]
    assert form.look({"credit": "trajectory"})["blocked"] == ""
    assert form.look({"credit": "turns"})["problems"] == {"credit": "'turns' must be one of trajectory, turn"}


def test_the_spread_of_a_form_is_over_turns(lab, play):
    play(EPISODES)
    options = {"credit": "turn", "scale_rewards": "false"}
    drawn = spread(lab.check("guess", {**TURN, "scale_rewards": False}).preflight)
    assert (drawn["above"], drawn["below"], drawn["most"]) == (2, 3, pytest.approx(30 / 17))
    assert "2 above 0, 3 below" in str(lab.train_form("guess", TURN).look(options)["figures"])


def test_the_option_is_sent_only_when_set_and_with_the_turn_rewards(play):
    submission = prepare([play(EPISODES)], {"credit": "turn"}, "lab/practice")
    assert submission.config.to_wire() == {"credit": "turn"}
    assert prepare(submission.groups.collections, {}, "lab/practice").config.to_wire() == {}
    [group] = submission.groups
    assert group.trajectories[0].metrics == {"turn_reward/0": 1.0, "turn_reward/1": 0.0, "turn_reward/2": 2.0}


def test_a_service_that_takes_one_reward_per_trajectory_refuses_it_by_name_in_the_report(play):
    wandb = dialect_of(Address("https://api.example.com", "https://api.example.com/v1", kind="wandb")).engine
    refused = gather([play(EPISODES)], {"credit": "turn"}, "lab/practice").with_engine(wandb)
    assert (
        "no job can begin: the engine wandb does not honour credit: it takes one reward for each trajectory "
        "-> leave it out"
    ) in refused.report()
    assert not any("no job" in line for line in refused.with_options({"credit": "trajectory"}).report())


@pytest.mark.parametrize(
    ("parts", "refused"),
    [
        ({}, True),  # typed
        ({"env": 0.0, "brief": 4.0}, False),  # there is nothing to leave out
        ({"env": 3.0, "brief": 4.0}, True),  # --weight env=0
        ({"env": 3.0, "brief": 1.0}, False),
        ({"env": 4.0}, False),
    ],
)
def test_a_reward_that_leaves_the_rewards_of_turns_out_is_refused(lab, play, parts, refused):
    played = play([(4.0, [1.0, 2.0], [2, 3]), (1.0, [0.0, 1.0], [4, 1])])
    environment = {"metrics": {"turn_reward/0": 1.0, "turn_reward/1": 2.0, "env": parts.get("env", 3.0)}}
    group = played.groups[0]
    arrival = Arrival(2, group.trajectories[0].items[1:], extra=environment)
    lab.store.put(group, [arrival], model="lab/practice", step=0, sampling={})
    added = lab.collection("guess").trajectories[2]
    lab.store.rewards.give([Score(added, 4.0, parts)], "function")
    if refused:
        with pytest.raises(InputError, match="the reward of 1 trajectory of guess leaves them out"):
            lab.check("guess", TURN)
    else:
        assert lab.check("guess", TURN)
    assert lab.check("guess", {"credit": "trajectory"})


@pytest.mark.parametrize("weight", [0.5, 2.0, -1.0])
def test_a_reward_with_another_weight_of_the_environment_than_1_is_refused(lab, episodes, weight):
    lab.reward("guess", {"brief": lambda trajectory: 0.0}, {"env": weight})
    with pytest.raises(InputError, match="the reward of 1 trajectory of guess leaves them out or weights") as refused:
        lab.check("guess", TURN)
    assert refused.value.hint == "credit: trajectory, or %rewards --undo, or %%reward without --weight env"
    assert lab.check("guess", {"credit": "trajectory"}).preflight.trainable_trajectories == 2


def test_weights_of_other_components_are_no_reason_to_refuse(lab, episodes):
    # the reward 2 + 0.5 * 4 is the sum of the other components too
    lab.reward("guess", {"brief": lambda trajectory: 4.0}, {"brief": 0.5})
    frame = lab.check("guess", TURN).to_frame()
    assert frame["reward_to_go"].tolist() == [4, 2, 2, 2]


def test_only_the_weights_of_the_present_rewards_count(lab, episodes):
    brief = {"brief": lambda trajectory: 0.0}
    lab.reward("guess", brief, {"env": 0.5})
    lab.reward("guess", brief)
    assert lab.check("guess", TURN)
    lab.collection("guess").undo_rewards(say=lambda _: None)
    with pytest.raises(InputError, match="leaves them out or weights"):
        lab.check("guess", TURN)
