"""One trajectory has one advantage in every view: that of a job of its collection. The mean is the collection's too."""

import gc
import re
import tracemalloc

import pytest

from rolloutlab.objective.options import Options
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Score
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.group_view import GroupView
from rolloutlab.trajectories.rewards_view import RewardsView
from tests.labs import completion, lab_with

GROUPS = [["a", "b"], ["c", "d", "e"], ["f", "g"]]
REWARDS = [0.0, 1.0, 0.0, 0.0, 9.0, 3.0, 3.0]


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    lab_with(lab, *GROUPS, rewards=REWARDS, make=lambda answer: completion(answer, ["x"] * (1 + ord(answer) % 5)))
    yield lab
    lab.close()


def of_the_job(lab, *labels) -> dict[str, float]:
    """The advantages that a job of these collections uses."""
    groups = [group for label in labels or ["capitals"] for group in Collection(lab, lab.find(label)).groups]
    from rolloutlab.objective.preflight import preflight
    from rolloutlab.trajectories.members import members_of

    return {share.member.name: share.advantage for share in preflight(members_of(groups), Options()).all_shares()}


def in_the_group_view(lab, position, view_of=None):
    standing = GroupView(lab, lab.find("capitals").id, view_of).reward_state(position)["standing"]
    return {f"capitals/{position}/{each['seat']}": each["advantage"] for each in standing}


@pytest.mark.parametrize("position", [0, 1])
def test_every_view_shows_the_advantage_of_the_job(lab, position):
    wanted = {name: a for name, a in of_the_job(lab).items() if name.startswith(f"capitals/{position}/")}
    stored = lab.find("capitals")
    assert in_the_group_view(lab, position) == in_the_group_view(lab, position, position) == wanted
    assert Collection(lab, stored, position).to_frame()["advantage"].to_dict() == wanted
    assert RewardsView(lab, [stored], position).to_frame()["advantage"].to_dict() == wanted
    whole = RewardsView(lab, [stored]).to_frame()["advantage"].to_dict()
    assert {name: whole[name] for name in wanted} == wanted
    shown = re.findall(r"[+-]\d\.\d\d", repr(Collection(lab, stored, position)))
    assert sorted(shown) == sorted(f"{a:+.2f}" for a in wanted.values())


def test_a_group_in_which_nothing_trains_has_the_reason_of_the_job(lab):
    frame = RewardsView(lab, [lab.find("capitals")]).to_frame()
    alone = RewardsView(lab, [lab.find("capitals")], 2).to_frame()
    assert alone["reason"].tolist() == frame["reason"].tolist()[-2:] == ["equal_rewards"] * 2


def test_an_edit_in_another_group_moves_the_advantages_that_are_shown(lab):
    of_one = RewardsView(lab, [lab.find("capitals")], 0)
    before = of_one.to_frame()["advantage"].tolist()
    last = Collection(lab, lab.find("capitals")).group(2).trajectories[0]
    lab.rewards.give([Score(last, 5.0)], source="hand")
    after = of_one.to_frame()["advantage"].tolist()
    assert after != before
    assert after == list(in_the_group_view(lab, 0).values()) == list(of_the_job(lab).values())[:2]


def test_a_collection_shows_the_mean_of_all_and_a_group_that_of_itself(lab):
    view = GroupView(lab, lab.find("capitals").id)
    assert "2.29" in str(view.overview()), "16 / 7"
    view.give(0, [0], 7.0)
    assert "3.29" in str(view.overview()), "23 / 7"
    assert GroupView(lab, lab.find("capitals").id, 0).overview() is None
    assert "mean reward 4.000" in repr(Collection(lab, lab.find("capitals"), 0))


def test_several_collections_say_that_their_advantages_are_of_one_job(lab):
    lab_with(lab, ["h", "i"], name="letters", rewards=[0.0, 1.0])
    both = RewardsView(lab, [lab.find("capitals"), lab.find("letters")])
    assert both.to_frame()["advantage"].dropna().tolist() == list(of_the_job(lab, "capitals", "letters").values())
    assert "in one job of these 2 collections" in repr(both)
    assert "in one job" not in repr(RewardsView(lab, [lab.find("capitals")]))


def test_views_of_a_collection_share_its_rows(lab):
    """Each output of a notebook keeps its view until the kernel ends."""
    lab_with(lab, *[["a", "b"]] * 400, name="many", rewards=[0.0, 1.0] * 400)
    stored = lab.find("many")

    def shown() -> RewardsView:
        view = RewardsView(lab, [stored])
        view.state()
        return view

    views = [shown()]
    gc.collect()
    tracemalloc.start()
    try:
        views += [shown() for _ in range(10)]
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / 10 < 50 * 800 / 2  # 11 MB of 16,000 trajectories, 700 bytes each, were taken by each view


def test_a_view_whose_rows_were_let_go_shows_what_is_there_now_in_its_order(lab):
    view = RewardsView(lab, [lab.find("capitals")])
    order = [row["name"] for row in view.page(sort="-reward")["rows"]]
    for i in range(6):
        lab_with(lab, ["a"], name=f"other{i}", rewards=[1.0])
        RewardsView(lab, [lab.find(f"other{i}")]).state()
    assert view.to_frame().index.tolist() == order
    assert view.set("capitals/0/0", 20)
    assert view.page(sort="-reward")["rows"][0]["name"] == "capitals/0/0"
