"""Views of every kind in one notebook: none spoils another."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.process

SAMPLE = "%load_ext rolloutlab\nimport rolloutlab\nlab = rolloutlab.lab()"


def style(element, name: str) -> str:
    return element.evaluate("(element, name) => getComputedStyle(element)[name]", name)


@pytest.mark.parametrize("front_end", ["lab"])
def test_each_kind_keeps_its_looks_beside_the_others_and_one_that_is_gone_lets_them_load(notebook, lab):
    for name in ("together", "passing"):
        lab.chat(name, "Name an animal.", n=4, max_tokens=8)
        lab.reward(name, lambda trajectory, answer, messages, row: float(int(trajectory.name[-1]) % 2))
    notebook.run(SAMPLE)
    gone = notebook.run("lab.rewards('passing')")
    expect(gone.locator(".rl-rewards .tabulator-row").first).to_be_visible()
    group = notebook.run("lab.collection('together/0')")
    expect(group.locator(".rl-view-groups")).to_be_visible()
    before = style(group.locator(".rl-view-groups article").first, "borderTopWidth")
    rewards = notebook.run("lab.rewards('together')")
    expect(rewards.locator(".tabulator-row").first).to_be_visible()
    size = style(rewards.locator(".rl-grid"), "fontSize")
    form = notebook.run("lab.train_form('together')")
    expect(form.locator(".rl-form")).to_be_visible()
    assert style(group.locator(".rl-view-groups article").first, "borderTopWidth") == before == "1px"
    assert style(rewards.locator(".rl-grid"), "fontSize") == size == "12px"
    notebook.run("lab.delete('passing')")
    notebook.reload()
    expect(notebook.outputs(1)).to_contain_text("passing:1 was deleted")
    for number, shown in ((2, ".rl-view-groups article"), (3, ".tabulator-row"), (4, ".rl-form")):
        notebook.outputs(number).scroll_into_view_if_needed()  # rows are drawn once they are near
        expect(notebook.outputs(number).locator(shown).first).to_be_visible()
