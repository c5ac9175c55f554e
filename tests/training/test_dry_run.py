"""A dry run: every trajectory with what it would train with, or why it would not."""

from itertools import chain

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import NewGroup
from tests.labs import completion, lab_with

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def lab(tmp_path):
    """A session without any service, on a lab with one collection of three groups."""
    session = Session(Settings(home=tmp_path, policy="/nowhere/practice"))
    groups = [[1.0, 0.0], [0.5, 0.5], [1.0, None]]
    prompts = [NewGroup([UserMessage(role="user", content=HOSTILE)], {}) for _ in groups]
    answers = [[completion("Paris", "a" * (2 + i)) for i in range(len(rewards))] for rewards in groups]
    lab_with(session.store, *answers, prompts=prompts, rewards=chain(*groups))
    yield session
    session.close()


def test_it_says_what_would_train_with_what_and_why_the_rest_would_not(lab):
    assert repr(lab.check("capitals")).splitlines() == [
        "dry run of capitals for lab/practice: nothing was submitted",
        "2 of 6 trajectories will train: 5 tokens in 1 of 3 groups",
        "1 step of 1 group (2 completions, 5 tokens)",
        "1 left out: no reward yet (capitals/2/1) -> %%reward capitals",
        "3 left out: all rewards of the group are equal, so nothing in it is better or worse "
        "(capitals/1/0, capitals/1/1, capitals/2/0) -> %%reward capitals with a finer score, "
        "or sample it with a larger -n",
        "",
        "  capitals/0/0           1  advantage +1.00 x weight 1.25 on 2 tokens",
        "  capitals/0/1           0  advantage -1.00 x weight 0.83 on 3 tokens",
        "",
        "  capitals/1/0         0.5  all rewards of the group are equal, so nothing in it is better or worse",
        "  capitals/1/1         0.5  all rewards of the group are equal, so nothing in it is better or worse",
        "",
        "  capitals/2/0           1  all rewards of the group are equal, so nothing in it is better or worse",
        "  capitals/2/1           -  no reward yet",
    ]


def test_the_table_has_the_trainers_own_numbers(lab):
    check = lab.check("capitals", {"advantage_balance": 0.5})
    frame = check.to_frame()
    shares = {share.member.name: share for share in check.preflight.all_shares()}
    assert frame["advantage"].to_dict() == {
        name: shares[name].advantage if name in shares else 0 for name in frame.index
    }
    assert frame["weight"].to_dict() == {name: shares[name].weight if name in shares else 0 for name in frame.index}
    trains = frame[frame["reason"].isna()]
    assert trains["tokens"].tolist() == [2, 3]
    assert (trains["advantage"].abs() * trains["weight"] * trains["tokens"]).sum() == pytest.approx(5)
    assert frame["reason"].dropna().tolist() == [*["equal_rewards"] * 3, "unscored"]
    assert frame["reward"].isna().tolist() == [False] * 5 + [True]


def test_the_html_says_the_same_in_a_table(lab):
    shown = lab.check("capitals")._repr_html_()
    assert "<code>capitals/0/0</code></td><td>1</td><td>+1.00</td><td>1.25</td><td>2</td>" in shown
    assert "no reward yet" in shown
    assert "<script>" not in shown


def test_nothing_is_submitted_and_no_service_is_started(lab):
    lab.check("capitals")
    assert lab.jobs().empty
    assert lab.embedded.running() is None
    assert not lab.settings.service_folder.exists()


def test_several_collections_are_checked_as_one_job(lab):
    summary = lab.store.open_collection("rivers")
    lab.store.add_groups(summary, [NewGroup([UserMessage(role="user", content="x")], {})])
    check = lab.check(["capitals", "riv*"])
    assert repr(check).startswith("dry run of capitals, rivers for")
    assert len(check.groups) == 4


def test_of_many_groups_the_first_are_shown(lab):
    summary = lab.store.open_collection("rivers")
    lab.store.add_groups(summary, [NewGroup([UserMessage(role="user", content="x")], {})] * 9)
    check = lab.check(["capitals", "rivers"])
    assert "... and 4 more groups: .to_frame() has them" in repr(check)
    assert "... and 4 more groups: .to_frame() has them" in check._repr_html_()


def test_wrong_options_and_names_are_errors_as_they_are_of_a_job(lab):
    with pytest.raises(InputError, match="epsilon: -1 is below 0"):
        lab.check("capitals", {"epsilon": -1})
    with pytest.raises(NotFoundError, match="no collection 'rivers'"):
        lab.check("rivers")
