"""A dry run: every trajectory with what it would train with, or why it would not."""

import re
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
    answers = [[completion(text, "a" * n) for text, n in (("Paris", 2), ("Lyon", 3))] for _ in groups]
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
    rows = [re.sub(r"<[^>]+>", "", row.replace("</td>", "|")) for row in re.findall(r"<tr>.*?</tr>", shown)]
    assert rows[1] == "capitals/0/0|1|+1.00|1.25|2|"
    assert rows[6].startswith("capitals/2/1|-|no reward yet|")
    assert 'Groups that train</span> <span class="rl-value">1 <small>of 3</small>' in shown
    assert "<script>" not in shown


def test_its_figures_are_those_of_the_job(lab):
    shown = lab.check("capitals", {"learning_rate": 0.01, "groups_per_step": 1, "epochs": 2})._repr_html_()
    assert "%%train capitals\nlearning_rate: 0.01\ngroups_per_step: 1\nepochs: 2</code>" in shown
    assert "2 \N{MULTIPLICATION SIGN} 1 <small>steps of 1 group</small>" in shown
    assert 'aria-label="advantages from \N{MINUS SIGN}1 to +1: 1 above 0, 1 below"' in shown
    assert '<span class="rl-name">Learning rate</span> <span class="rl-value">0.01</span>' in shown
    assert "no job of this model yet" in shown


def test_it_names_the_checkpoint_and_what_that_was_last_trained_on(session):
    session.chat("towns", "Capital of Peru?", n=2, max_tokens=4, seed=1)
    session.reward("towns", lambda trajectory, answer, messages, row: int(trajectory.name[-1]), say=lambda _: None)
    session.train("towns", say=lambda _: None).wait(progress=False)
    check = session.check("towns")
    assert (
        repr(check).splitlines()[0]
        == "dry run of towns for lab/practice@1, trained last on towns: nothing was submitted"
    )
    assert "1 prompt \N{MULTIPLICATION SIGN} 2 · lab/practice@1 \N{RIGHTWARDS ARROW} @2" in check._repr_html_()
    assert "trained last on towns</span>" in check._repr_html_()


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
