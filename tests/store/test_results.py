"""Results of collections: as the check of a job counts them, over what the lab stores."""

from statistics import mean

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.objective.advantages import Reason
from rolloutlab.store.models import Arrival, NewGroup, Score
from tests.labs import completion, lab_with, without_logprobs


@pytest.fixture
def scored(session):
    """Six groups, of which two train, one passes, one fails, one is between, and one has no reward."""
    rewards = [[0, 1], [1, 1], [0, 0], [0.5, 0.5], [1, 0.5]]
    session.chat("mixed", "Say {{n}}", over=[{"n": n} for n in range(6)], n=2, max_tokens=2, seed=1)
    groups = session.collection("mixed").groups
    scores = [
        Score(trajectory, reward)
        for group, given in zip(groups[:5], rewards, strict=True)
        for trajectory, reward in zip(group.trajectories, given, strict=True)
    ]
    session.store.rewards.give(scores, "hand")
    return session


def test_groups_are_counted_as_the_check_of_a_job_counts_them(scored):
    result = scored.store.results.by_id()[scored.store.find("mixed").id]
    check = scored.collection("mixed").preflight()
    reasons = [{share.reason for share in group} for group in check.shares]
    assert result.trains == check.trainable_groups == 2
    assert result.all_pass == reasons.count({Reason.ALL_PASSED}) == 1
    assert result.all_fail == reasons.count({Reason.ALL_FAILED}) == 1
    assert (result.groups, result.n, result.answers, result.scored) == (6, 2, 12, 10)


def test_what_has_no_logprobs_does_not_train(session):
    lab = session.store
    lab_with(lab, ["a", "b"], ["a", "b"], name="imported", rewards=[0, 1, 0, 1], make=without_logprobs)
    lab_with(lab, [without_logprobs("a"), completion("b")], name="partly", rewards=[0, 1])
    trains = [lab.results.by_id()[lab.find(name).id].trains for name in ("imported", "partly")]
    assert trains == [session.collection(name).preflight().trainable_groups for name in ("imported", "partly")]


@pytest.mark.parametrize(
    ("rewards", "answers"),
    [([0.1 + 0.2, 0.3], ["a", "b"]), ([0, 1, None], [without_logprobs("a"), without_logprobs("b"), completion("c")])],
    ids=["rounding", "only an answer without a reward has logprobs"],
)
def test_a_group_trains_here_where_it_does_in_a_job(session, rewards, answers):
    lab = session.store
    lab_with(lab, answers, name="letters", rewards=rewards)
    assert session.collection("letters").preflight().trainable_groups == 0
    assert lab.results.by_id()[lab.find("letters").id].trains == 0


def test_the_mean_is_that_of_all_answers(scored):
    result = scored.store.results.by_id()[scored.store.find("mixed").id]
    means = [0.5, 1, 0, 0.5, 0.75]
    assert result.mean == pytest.approx(mean(means))


def test_rewards_near_the_end_of_floats_break_no_table(session):
    largest = [1e308, 1e308]
    lab_with(session.store, ["a", "b"], ["a", "b"], name="huge", rewards=[*largest, -1e308, -1e308])
    lab_with(session.store, ["a", "b"], name="large", rewards=largest)
    results = session.store.results.by_id()
    means = [results[session.store.find(name).id].mean for name in ("huge", "large")]
    assert means == [0.0, 1e308]
    assert "huge" in repr(session.collections())


def test_answers_that_the_token_limit_ended_are_counted_with_the_checkpoint_that_gave_them(scored):
    result = scored.store.results.by_id()[scored.store.find("mixed").id]
    ended = [trajectory.finish_reason for trajectory in scored.collection("mixed").trajectories]
    assert result.cut_off == ended.count("length") > 0
    assert result.cut_off_share == ended.count("length") / 12
    assert (result.model, result.step) == ("lab/practice", 0)


def test_a_collection_without_answers_has_no_reward(session):
    made = session.store.open_collection("empty")
    assert session.store.results.by_id() == {}
    session.store.add_groups(made, [])
    assert "empty" in repr(session.collections())


def test_of_several_checkpoints_one_that_exists_is_named_and_the_others_are_counted(session):
    lab = session.store
    stored = lab.open_collection("mixed")
    prompts = [NewGroup([UserMessage(role="user", content=text)], {}) for text in ("One?", "Two?")]
    sampled = ("lab/alpha", 7), ("lab/zeta", 0)
    for group, (model, step) in zip(lab.add_groups(stored, prompts), sampled, strict=True):
        lab.put(group, [Arrival(0, [completion("a")])], model=model, step=step, sampling={})
    result = lab.results.by_id()[stored.id]
    assert (result.model, result.step, result.others) == ("lab/alpha", 7, 1)
    assert tuple(lab.results.checkpoints(stored.id)) == sampled
    assert "lab/alpha@7 and 1 more" in repr(session.collections())
    assert "lab/zeta@7" not in repr(session.collections()) + session.collections()._repr_html_()
