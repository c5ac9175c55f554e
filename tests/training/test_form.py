"""The training form: what would train while options change, and one job from it."""

import gc
import re
import threading
import weakref

import pytest

from rolloutlab.errors import InputError, NotFoundError, NothingTrainsError
from rolloutlab.training.form import TrainingForm

RATE = {"learning_rate": "2e-3"}


@pytest.fixture
def scored(session):
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    return session


@pytest.fixture
def form(scored) -> TrainingForm:
    return scored.train_form("capitals")


def look(form: TrainingForm, **texts: str):
    return form.answer({"id": 1, "call": "look", "args": {"texts": texts}})["result"]


def test_it_begins_with_what_was_given_by_its_proper_name(scored):
    form = scored.train_form(["capitals"], {"kimi_k2_tau": 0.1, "ppo": False, "epsilon": None})
    assert form.options == {"vendor_k2_tau": 0.1}
    assert form.cell == "%%train capitals\nvendor_k2_tau: 0.1"
    assert form.state()["texts"] == {"vendor_k2_tau": "0.1", "ppo": "false"}


def test_an_unknown_option_or_collection_is_refused_at_once(scored):
    with pytest.raises(InputError, match="unknown option 'epsilom'"):
        scored.train_form("capitals", {"epsilom": 0.1})
    with pytest.raises(InputError, match="options are a dict"):
        scored.train_form("capitals", [("epsilon", 0.1)])
    with pytest.raises(NotFoundError):
        scored.train_form("capital")


def test_what_would_train_is_told_as_the_dry_run_tells_it(form, scored):
    response = look(form)
    assert response["headline"] == "4 of 4 trajectories will train: 16 tokens in 1 of 1 group"
    assert (response["blocked"], response["problems"], response["train"]) == ("", {}, "Train: 1 step")
    assert "1 prompt \N{MULTIPLICATION SIGN} 4 · lab/practice@0 \N{RIGHTWARDS ARROW} @1" in str(response["head"])
    assert repr(form.check()) == repr(scored.check("capitals"))


def test_the_spread_of_the_advantages_follows_the_options(form):
    assert "2 above 0, 2 below'" in str(look(form)["figures"])
    assert "2 above 0, 0 below, 2 at 0" in str(look(form, advantage_balance="1")["figures"])


def test_the_steps_follow_the_options_and_are_on_the_button(scored):
    scored.chat("rivers", "A river of {{country}}?", n=2, over=[{"country": str(i)} for i in range(9)], max_tokens=2)
    scored.reward("rivers", lambda trajectory, answer, messages, row: int(trajectory.name[-1]), say=lambda _: None)
    form = scored.train_form("rivers")
    response = look(form, groups_per_step="3", epochs="2")
    assert response["train"] == "Train: 2 \N{MULTIPLICATION SIGN} 3 steps"
    assert "steps of 3 groups" in str(response["figures"])
    assert look(form, groups_per_step="0")["train"] == "Train: 1 step"


@pytest.fixture
def trained(scored):
    """A lab whose last job had two options."""
    scored.train("capitals", {"learning_rate": 1e-4, "ppo": True}, say=lambda _: None).wait(progress=False)
    return scored


def flat(nodes) -> str:
    """The text of nodes."""
    return "".join(node if isinstance(node, str) else flat(node[2]) for node in nodes)


def nodes_of(nodes):
    """All nodes, those within others too."""
    return [each for node in nodes for each in ([node] if isinstance(node, str) else [node, *nodes_of(node[2])])]


def test_what_changed_since_the_last_job_is_a_line_and_stands_beside_each_field(trained):
    form = trained.train_form("capitals", {"learning_rate": 5e-5, "ppo": True, "epochs": 2})
    response, job = look(form, **form.state()["texts"]), trained.jobs().index[0][:8]
    arrow = "\N{RIGHTWARDS ARROW}"
    line = f"2 options changed since job {job}: learning_rate 0.0001 {arrow} 5e-05, epochs default {arrow} 2"
    assert line in flat(response["changed"])
    assert response["was"] == {"learning_rate": "0.0001", "epochs": "default"}
    assert response["last"] == {"learning_rate": "0.0001", "ppo": "true"}
    assert "trained last on capitals" in flat(response["head"])
    assert line in repr(form)
    assert line in re.sub(r"<[^>]*>", "", form._repr_html_())


def test_the_same_value_in_another_form_is_no_change(trained):
    form = trained.train_form("capitals")
    assert look(form, learning_rate="1e-4", ppo="True", epochs="1")["was"] == {}
    assert look(form, learning_rate="1e-4", ppo="True")["changed"] == []


def test_a_learning_rate_many_times_that_of_the_last_job_is_said_first(trained):
    hints = flat(look(trained.train_form("capitals"), learning_rate="5e-4", ppo="true")["hints"])
    assert hints.startswith("!learning_rate is 5 times that of job ")
    assert "It had 0.0001." in hints


def test_the_first_job_of_a_model_and_one_of_another_are_compared_with_nothing(trained):
    trained.model("lab/other")
    response = look(trained.train_form("capitals"), learning_rate="1e-3")
    assert (response["was"], response["last"], response["changed"]) == ({}, None, [])
    assert "no job of this model yet" in flat(response["head"])


def test_once_submitted_it_is_compared_with_the_job_before_its_own(trained):
    form = trained.train_form("capitals", {"learning_rate": 5e-5, "ppo": True})
    form.submit().wait(progress=False)
    assert "learning_rate 0.0001" in repr(form)


def test_a_job_that_failed_is_no_last_job(trained):
    trained.store.jobs.set_status(trained.store.jobs.newest_first()[0].id, "failed")
    assert look(trained.train_form("capitals"))["last"] is None


def test_a_wrong_value_is_told_in_the_words_of_the_check_and_nothing_can_be_submitted(form, scored):
    response = look(form, advantage_balance="2", learning_rate="fast", epsilon="0.3")
    assert response["problems"] == {
        "advantage_balance": "2 is outside -1 to 1",
        "learning_rate": "'fast' is not a number",
    }
    assert "learning_rate: 'fast' is not a number" in response["blocked"]
    assert response["headline"].startswith("4 of 4")
    assert response["cell"] == "%%train capitals\nepsilon: 0.3"
    refused = form.answer({"id": 2, "call": "submit", "args": {"texts": {"learning_rate": "fast"}}})
    assert refused["error"] == {"message": "learning_rate: 'fast' is not a number", "hint": "learning_rate: 2e-3"}
    assert form.job is None
    assert scored.store.jobs.newest_first() == []


def test_what_options_do_together_is_told_beside_them(form):
    assert look(form, ppo="true", epsilon="0.3")["notes"]["epsilon_high"] == ["follows epsilon with ppo: 0.3"]
    assert "changes nothing" in look(form, scale_rewards="false")["notes"]["scale_rewards"][0]


def test_where_nothing_trains_it_says_why_and_what_to_type(form, scored):
    scored.reward("capitals", lambda trajectory, answer, messages, row: 1.0, say=lambda _: None)
    response = look(form)
    assert response["blocked"] == "nothing would train"
    assert "%%reward capitals" in flat(response["hints"])
    with pytest.raises(NothingTrainsError):
        form.submit()
    assert form.job is None


def test_it_stays_with_its_collection_under_whatever_name(form, scored):
    scored.rename("capitals", "towns", say=lambda _: None)
    response = look(form)
    assert "Train on towns" in flat(response["head"])
    assert (response["cell"], response["blocked"]) == ("%%train towns", "")
    assert response["headline"].startswith("4 of 4")
    scored.chat("towns", "Capital of Peru?", n=2, max_tokens=4, seed=1)
    response = look(form, ppo="true")
    assert "Train on towns:1" in flat(response["head"])
    assert response["cell"] == "%%train towns:1\nppo: true"
    assert response["headline"].startswith("4 of 4")
    form.submit()
    assert list(scored.store.jobs.newest_first()[0].collections) == ["towns:1"]


def test_once_its_collection_is_deleted_it_says_so_and_nothing_can_be_submitted(form, scored):
    look(form)
    scored.delete("capitals", say=lambda _: None)
    response = look(form, epsilon="0.3")
    assert response["headline"] == "capitals:1 was deleted → %collections --restore capitals:1"
    assert response["blocked"] == "nothing would train"
    assert "Train on capitals" in flat(response["head"])
    assert response["cell"] == "%%train capitals\nepsilon: 0.3"
    refused = form.answer({"id": 1, "call": "submit", "args": {"texts": {}}})
    assert refused["error"]["message"] == "capitals:1 was deleted"
    scored.restore("capitals", say=lambda _: None)
    assert look(form)["headline"].startswith("4 of 4")


def test_a_browser_is_told_of_other_rewards_until_the_form_is_submitted(form, scored):
    events = []
    form.push = lambda event, **_data: events.append(event)
    look(form)
    scored.reward("capitals", lambda trajectory, answer, messages, row: 1.0, say=lambda _: None)
    assert set(events) == {"changed"}
    assert look(form)["headline"].startswith("0 of 4")
    scored.rewards("capitals").undo()
    form.submit()
    events.clear()
    scored.reward("capitals", lambda trajectory, answer, messages, row: 1.0, say=lambda _: None)
    assert "changed" not in events


def test_a_form_that_nobody_holds_is_gone(scored):
    form = weakref.ref(scored.train_form("capitals"))
    gc.collect()
    assert form() is None


def test_it_is_submitted_once_however_often_it_is_asked_to(form, scored):
    jobs = []
    threads = [threading.Thread(target=lambda: jobs.append(form.submit().id)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(jobs)) == 1
    assert [job.id for job in scored.store.jobs.newest_first()] == jobs[:1]


def test_what_is_submitted_is_what_is_in_the_fields(form, scored):
    answer = form.answer({"id": 1, "call": "submit", "args": {"texts": {**RATE, "ppo": "true"}}})
    assert answer["result"]["head"]["model"] == "lab/practice"
    assert form.job.wait().status == "succeeded"
    assert scored.store.jobs.newest_first()[0].options == {"learning_rate": 0.002, "ppo": True}


def test_once_submitted_its_options_stay_and_it_answers_for_the_job(form):
    assert set(form.calls()) == {"look", "submit"}
    job = form.submit()
    look(form, epsilon="0.5")
    assert form.options == {}
    assert {"watch", "cancel"} <= set(form.calls())
    assert form.state()["job"]["head"]["id"] == job.id[:8]
    job.wait()
    assert "succeeded" in repr(form)
    assert "succeeded" in form._repr_html_()


def test_the_cell_does_what_the_form_does(scored):
    scored.chat("letters", "A letter?", n=2, max_tokens=2, seed=1)
    form = scored.train_form(["capitals", "lett*"], {"learning_rate": 2e-3, "ppo": True, "scale_rewards": True})
    assert form.cell == "%%train capitals letters\nlearning_rate: 0.002\nppo: true"


def test_without_scripts_it_reads_as_the_cell_and_what_would_train(scored):
    form = scored.train_form("capitals", {"epsilon": "<b>", "ppo": True})
    assert repr(form).splitlines()[:2] == ["%%train capitals", "ppo: true"]
    assert "4 of 4 trajectories will train" in repr(form)
    assert "epsilon: '<b>' is not a number" in repr(form)
    assert "<b>&lt;b&gt;</b>" in form._repr_html_()
    assert 'Answers that train</span> <span class="rl-value">4 <small>of 4</small>' in form._repr_html_()


def test_the_model_in_force_is_the_one_that_would_train(form, scored):
    scored.model("lab/other")
    response = look(form)
    assert "lab/other" in flat(response["head"])
    assert ["code", {"class": "rl-cell"}, ["%model lab/practice"]] in nodes_of(response["hints"])


def test_answers_that_were_cut_off_are_said_first_before_a_job_too(session):
    session.chat("words", "Say {{n}}", over=[{"n": n} for n in range(4)], n=4, max_tokens=2, seed=1)
    session.reward("words", lambda trajectory, answer, messages, row: int(trajectory.name[-1]) % 2)
    said = session.collection("words").warnings()[0]
    assert said.fact == "8 of 8 failures were cut off by max_tokens=2."
    check, form = session.check("words"), session.train_form("words")
    assert repr(check).splitlines()[1] == said.line()
    assert said.line() in repr(form)
    for view in (check._repr_html_(), form._repr_html_()):
        assert view.index("8 of 8 failures") < view.index("Groups that train")
    assert "8 of 8 failures" in str(form.state()["outlook"]["hints"])
