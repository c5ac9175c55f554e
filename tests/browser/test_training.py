"""A training job in a browser: filled into a form, watched, cancelled, found again."""

import re

import pytest
from playwright.sync_api import Locator, expect

from rolloutlab.session import Session
from rolloutlab.store.models import Arrival, NewGroup, Score

pytestmark = pytest.mark.process

PROMPT = "Sort these letters: {{letters}}"
ROWS = [{"letters": letters} for letters in ("d b a c", "s h i f", "q m e r", "o k t u", "z y x w", "n g j l")]
COPIES = 80
TRAIN = re.compile("^Train")
HOSTILE = "<img src=x onerror=window.acted=1>"
STEPS = re.compile(r"\d+ of \d+ gradient steps")


def in_place(trajectory, answer, messages, row) -> float:
    wanted = sorted(row["letters"].split())
    return sum(map(str.__eq__, answer.split(), wanted)) / len(wanted)


@pytest.fixture(scope="package")
def sorting(lab: Session) -> str:
    """A scored collection that trains in a moment."""
    lab.chat("sorting", PROMPT, n=8, over=ROWS, max_tokens=16, seed=1)
    lab.reward("sorting", in_place, say=lambda _: None)
    return "sorting"


@pytest.fixture(scope="package")
def slow(lab: Session, sorting: str) -> str:
    """The same many times over: a job that lasts until it is cancelled."""
    groups = [group for _ in range(COPIES) for group in lab.collection(sorting).groups]
    summary = lab.store.open_collection("slow")
    made = lab.store.add_groups(summary, [NewGroup(list(group.prompt), group.row) for group in groups])

    def put() -> None:
        for group, copied in zip(made, groups, strict=True):
            arrivals = [Arrival(i, t.items[t.given :]) for i, t in enumerate(copied.trajectories)]
            lab.store.put(group, arrivals, model="lab/practice", step=0, sampling={})

    lab.store.at_once(put)
    rewards = [t.reward for group in groups for t in group.trajectories]
    trajectories = lab.collection("slow").trajectories
    lab.store.rewards.give([Score(t, r) for t, r in zip(trajectories, rewards, strict=True)], "function")
    return "slow"


@pytest.fixture
def loaded(notebook):
    notebook.run("%load_ext rolloutlab\nimport rolloutlab\nlab = rolloutlab.lab()")
    return notebook


def steps_done(view: Locator) -> int:
    return int(re.search(r"(\d+) of", view.locator(".rl-done").inner_text())[1])


def cancel(view: Locator) -> None:
    """Cancel a job by its button and the question after it, by keyboard."""
    view.get_by_role("button", name="Cancel", exact=True).press("Enter")
    view.get_by_role("button", name="Cancel the job").press("Enter")


def test_a_form_is_filled_in_by_keyboard_and_becomes_one_job(loaded, lab, sorting):
    before = len(lab.store.jobs.newest_first())
    form = loaded.run(f"%%train {sorting} --form -o form\nkimi_k2_tau: 0.01").locator(".rl-form")
    press = loaded.page.keyboard.press
    expect(form.locator(".rl-headline")).to_contain_text("of 48 trajectories will train")
    expect(form.get_by_label("vendor_k2_tau")).to_have_value("0.01")

    form.get_by_text("more, all at their default").press("Enter")
    balance = form.get_by_label("advantage_balance")
    balance.focus()
    loaded.page.keyboard.type("2")
    expect(balance).to_have_attribute("aria-invalid", "true")
    expect(balance).to_have_accessible_description(re.compile("2 is outside -1 to 1"))
    expect(form.get_by_role("button", name=TRAIN)).to_be_disabled()
    loaded.screenshot("training-form-wrong")
    press("Backspace")
    loaded.page.keyboard.type("1")
    expect(balance).to_have_accessible_description(re.compile("nothing teaches to avoid"))
    expect(form.get_by_label(re.compile("advantages from .* 0 below"))).to_be_visible()
    press("Backspace")
    expect(form.get_by_label(re.compile("advantages from .* 0 below"))).to_have_count(0)

    form.get_by_label("learning_rate", exact=True).focus()
    press("Tab")
    expect(form.get_by_label("epsilon", exact=True)).to_be_focused()
    loaded.page.keyboard.type(".3")
    form.get_by_label("ppo").focus()
    press("t")
    expect(form.get_by_label("ppo")).to_have_value("true")
    follows = re.compile("follows epsilon with ppo: 0.3")
    expect(form.get_by_label("epsilon_high")).to_have_accessible_description(follows)
    expect(form.locator("pre")).to_have_text(f"%%train {sorting}\nepsilon: .3\nvendor_k2_tau: 0.01\nppo: true")

    form.get_by_role("button", name="Copy as cell").press("Enter")
    expect(form.locator(".rl-outlook > .rl-status")).to_contain_text(re.compile("copied|selected"))
    form.get_by_role("button", name=TRAIN).focus()
    press("Enter")
    press("Enter")
    job = form.locator(".rl-job")
    expect(job.locator(".rl-state")).to_have_text("succeeded")
    expect(job.locator(".rl-facts")).to_contain_text("Gradient norm")
    expect(job.locator("canvas")).to_have_count(0)  # two steps are figures, not charts
    expect(job.locator(".rl-next")).to_contain_text(f"compare {sorting}")
    expect(form.get_by_label("epsilon", exact=True)).to_be_disabled()
    loaded.screenshot("training-form")
    assert len(lab.store.jobs.newest_first()) == before + 1
    assert lab.store.jobs.newest_first()[0].options == {"vendor_k2_tau": 0.01, "epsilon": 0.3, "ppo": True}
    expect(loaded.run("form.job.status")).to_contain_text("succeeded")


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_form_is_filled_in_with_an_algorithm_and_says_when_its_options_are_others(loaded, sorting):
    form = loaded.run(f"%%train {sorting} --form\nalgorithm: dapo").locator(".rl-form")
    algorithm = form.get_by_label("algorithm", exact=True)
    expect(algorithm).to_have_value("dapo")
    expect(form.get_by_label("epsilon_high")).to_have_value("0.28")
    form.get_by_label("learning_rate").fill("1e-3")
    algorithm.select_option("rloo")
    expect(form.get_by_label("epsilon_high")).to_have_value("")
    filled = "scale_rewards: false\nloss_aggregation: constant\nloss_scale_factor: 1"
    expect(form.locator("pre")).to_have_text(f"%%train {sorting}\nlearning_rate: 1e-3\n{filled}")
    loaded.screenshot("training-form-algorithm")
    form.get_by_label("loss_scale_factor").fill("8")
    expect(algorithm).to_have_value("as typed")
    form.get_by_role("button", name="All defaults").click()
    expect(algorithm).to_have_value("")
    expect(form.locator("pre")).to_have_text(f"%%train {sorting}")


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_form_shows_what_changed_since_the_last_job_and_goes_back_to_it(loaded, lab, sorting):
    lab.train(sorting, {"learning_rate": 1e-4}, say=lambda _: None).wait(progress=False)
    form = loaded.run(f"%%train {sorting} --form\nlearning_rate: 5e-5\nepochs: 2").locator(".rl-form")
    expect(form.locator(".rl-hint").first).to_contain_text("2 options changed since job")
    rate = form.get_by_label("learning_rate", exact=True)
    expect(rate).to_have_accessible_description(re.compile("last job: 0.0001"))
    form.get_by_role("button", name="As in the last job").click()
    expect(form.get_by_label("learning_rate", exact=True)).to_have_value("0.0001")
    expect(form.locator("pre")).to_have_text(f"%%train {sorting}\nlearning_rate: 0.0001")
    expect(form.locator(".rl-hint").first).not_to_contain_text("changed since job")


@pytest.mark.parametrize("front_end", ["lab"])
@pytest.mark.parametrize("width", [390, 700, 1280, 2000])
def test_a_form_fits_a_page_of_any_width(loaded, sorting, width):
    form = loaded.run(f"%%train {sorting} --form\nlearning_rate: 5e-5\nepochs: 2").locator(".rl-form")
    form.evaluate("(form, width) => { form.style.width = `${width}px`; form.style.maxWidth = 'none'; }", width)
    form.get_by_text("more, all at their default").click()
    expect(form.get_by_label("advantage_balance")).to_be_visible()
    assert form.evaluate("form => form.scrollWidth - form.clientWidth") == 0


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_form_shows_what_other_cells_change_before_anything_is_typed(loaded, lab):
    lab.chat("fm", "Name a colour.", n=4, max_tokens=4, seed=1)
    lab.reward("fm", lambda trajectory, answer, messages, row: int(trajectory.name[-1]), say=lambda _: None)
    form = loaded.run("%%train fm --form").locator(".rl-form")
    headline, submit = form.locator(".rl-headline"), form.get_by_role("button", name=TRAIN)
    expect(headline).to_contain_text("4 of 4 trajectories will train")
    expect(submit).to_be_enabled()
    loaded.run("_ = lab.rewards('fm').set([f'fm/0/{i}' for i in range(4)], 1.0)")
    expect(headline).to_contain_text("0 of 4 trajectories will train")
    expect(submit).to_be_disabled()

    loaded.run("lab.rename('fm', 'fm2'); _ = lab.rewards('fm2').undo()")
    expect(headline).to_contain_text("4 of 4 trajectories will train")
    expect(form.locator(".rl-head > b").first).to_have_text("Train on fm2")
    expect(submit).to_be_enabled()
    loaded.run("lab.delete('fm2')")
    form.get_by_label("epsilon", exact=True).press("3")
    expect(headline).to_have_text("fm2:1 was deleted → %collections --restore fm2:1")
    expect(submit).to_be_disabled()


def test_a_job_is_watched_while_its_cell_runs_and_cancelled_from_there(loaded, slow):
    shown = loaded.start(f"%%train {slow}")
    view = shown.locator(".rl-job")
    expect(view.locator(".rl-state")).to_have_text("running")
    expect(view.locator(".rl-done")).to_contain_text(STEPS)
    expect(view.locator("canvas").first).to_be_visible()
    first = steps_done(view)
    expect(view.locator(".rl-done")).not_to_contain_text(f"{first} of")
    assert steps_done(view) > first
    view.get_by_role("button", name="Cancel", exact=True).press("Enter")
    expect(view.get_by_role("button", name="Go on")).to_be_focused()
    loaded.page.keyboard.press("Escape")
    expect(view.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    cancel(view)
    loaded.wait_until_ended()
    expect(view).to_have_count(1)
    expect(view.locator(".rl-state")).to_have_text("cancelled")
    expect(shown).to_contain_text("was cancelled")


def test_a_job_that_ended_while_its_cell_ran_is_there_once(loaded, slow, sorting, lab):
    shown = loaded.run(f"%%train {sorting}")
    expect(shown.locator(".rl-job")).to_have_count(1)
    expect(shown.locator(".rl-state")).to_have_text("succeeded")


@pytest.mark.parametrize("front_end", ["lab"])
def test_an_interrupt_leaves_the_job_running_and_its_view_goes_on(loaded, slow):
    view = loaded.start(f"%%train {slow}").locator(".rl-job")
    expect(view.locator(".rl-done")).to_contain_text(STEPS)
    loaded.page.evaluate("() => window.harness.panel().sessionContext.session.kernel.interrupt()")
    loaded.wait_until_ended()
    reached = steps_done(view)
    expect(view.locator(".rl-done")).not_to_contain_text(f"{reached} of")
    expect(view.locator(".rl-state")).to_have_text("running")
    cancel(view)
    expect(view.locator(".rl-state")).to_have_text("cancelled")


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_view_goes_on_after_a_reload_and_another_after_a_restart(loaded, slow):
    loaded.run(f'job = lab.train("{slow}", wait=False, say=lambda line: None)')
    shown = loaded.run("job")
    expect(shown.locator(".rl-done")).to_contain_text(STEPS)
    before = steps_done(shown)
    loaded.reload()
    number = loaded._number
    view = loaded.outputs(number).locator(".rl-job")
    expect(view.locator(".rl-state")).to_have_text("running")
    expect(view.locator(".rl-done")).to_contain_text(STEPS)
    assert steps_done(view) >= before
    view.get_by_text("as table").click()
    expect(view.get_by_role("rowheader", name="1", exact=True)).to_be_visible()

    loaded.restart_kernel()
    expect(loaded.outputs(number).locator(".rl-ended")).to_contain_text(re.compile("→ %job [0-9a-f]{8}"))
    expect(view.get_by_role("button")).to_have_count(0)
    loaded.run("%load_ext rolloutlab")
    again = loaded.run("%job").locator(".rl-job")
    expect(again.locator(".rl-done")).to_contain_text(STEPS)
    reached = steps_done(again)
    expect(again.locator(".rl-done")).not_to_contain_text(f"{reached} of")
    cancel(again)
    expect(again.locator(".rl-state")).to_have_text("cancelled")


@pytest.mark.parametrize("front_end", ["lab"])
def test_curves_follow_the_arrow_keys_the_theme_and_the_window(loaded, sorting):
    view = loaded.run(f"%%train {sorting}\ngroups_per_step: 1").locator(".rl-job")
    expect(view.locator("canvas")).to_have_count(3)
    folded = view.get_by_text("6 more: ")
    expect(folded).to_contain_text(re.compile("loss .* mean ratio .* gradient norm"))
    folded.click()
    expect(view.locator("canvas")).to_have_count(9)
    view.get_by_role("group", name="curves over the gradient steps").press("ArrowRight")
    expect(view.locator(".rl-values").first).to_contain_text("step 1")
    expect(view.locator(".rl-values").last).to_contain_text("step 1")
    light = view.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
    loaded.theme("JupyterLab Dark")
    loaded.page.wait_for_function(
        "([canvas, light]) => canvas.toDataURL() !== light", arg=[view.locator("canvas").first.element_handle(), light]
    )
    loaded.screenshot("training-job-dark")
    loaded.narrow()
    expect(view.locator("canvas").first).to_be_in_viewport()
    width = view.locator("figure").first.evaluate("figure => figure.scrollWidth - figure.clientWidth")
    assert width == 0
    loaded.screenshot("training-job-narrow")


@pytest.mark.parametrize("front_end", ["lab"])
def test_what_a_service_says_of_a_job_is_text(loaded):
    shown = loaded.run(f"""
from rolloutlab.training.job import Job
from rolloutlab.api.wire.training import Event
said = [Event(id="1", type="preflight", data={{"warnings": [{HOSTILE!r}], "reasons": {{{HOSTILE!r}: 1}}}}),
        Event(id="2", type="training_failed", data={{"error_message": {HOSTILE!r}}})]
Job(None, None, "0" * 8, {HOSTILE!r}, [], known=said)""")
    expect(shown.locator(".rl-notes .rl-hint")).to_have_count(3)
    expect(shown.locator(".rl-notes")).to_contain_text(HOSTILE)
    expect(shown.locator(".rl-title")).to_contain_text(HOSTILE)
    expect(shown.locator("img")).to_have_count(0)


@pytest.mark.parametrize("front_end", ["lab"])
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_every_text_stands_out_from_what_it_stands_on(loaded, sorting, theme):
    loaded.theme(theme)
    form = loaded.run(f"%%train {sorting} --form\nadvantage_balance: 2\nepsilon: 0.2").locator(".rl-form")
    expect(form.locator(".rl-problem").filter(has_text="outside")).to_be_visible()
    assert loaded.faint(form) == []
    for end, status in (("ended", "succeeded"), ("failed", "failed"), ("cancelled", "cancelled")):
        shown = loaded.run(f"""
from rolloutlab.training.job import Job
from rolloutlab.api.wire.training import Event
numbers = dict(step=1, num_gradient_steps=1, loss=50.0, entropy=0.01, grad_norm=1e6, ratio_mean=3.0, ratio_max=90.0)
said = [Event(id="1", type="preflight", data={{"warnings": ["cut off"], "reasons": {{"all equal": 1}}}}),
        Event(id="2", type="gradient_step", data=numbers),
        Event(id="3", type="training_{end}", data={{"error_message": "no memory"}})]
Job(None, None, "0" * 8, "lab/practice", [], known=said)""")
        expect(shown.locator(".rl-state")).to_have_text(status)
        assert loaded.faint(shown.locator(".rl-job")) == []


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_loop_at_the_end_of_a_cell_is_shown_once(loaded):
    loaded.run("def short(trajectory, answer, messages, row):\n    return -len(answer)")
    shown = loaded.run('lab.loop("brief", "Name an animal.", short, over=None, jobs=1, n=4, max_tokens=8)')
    expect(shown.locator(".rl-panel .rl-band")).to_have_count(1)


REWARD = """\
import ipywidgets
button = ipywidgets.Button()
message = {"content": {"data": {"method": "custom", "content": {"event": "click"}}}, "buffers": []}
def short(trajectory, answer, messages, row):
    button.comm.handle_msg(message)  # as a kernel does beside a cell, in another thread
    return -len(answer)"""


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_loop_beside_which_a_widget_was_pressed_is_shown_by_a_later_cell(loaded):
    loaded.run(REWARD)
    loaded.run('rounds = lab.loop("later", "Name an animal.", short, over=None, jobs=2, n=4, max_tokens=8)')
    expect(loaded.run("rounds").locator(".rl-panel .rl-band")).to_have_count(1)
