"""What a newcomer types, in a browser."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.process


def test_the_first_cells_of_the_readme_show_their_results(notebook, readme_cells):
    load, chat, reward, table, train, collections, _ = readme_cells
    assert notebook.text_of(notebook.run(load)) == ""
    expect(notebook.run(chat)).to_contain_text("not scored yet")
    expect(notebook.run(reward)).to_contain_text(re.compile(r"Mean reward\s*[\d.]+"))
    rewards = notebook.run(table)
    expect(rewards.get_by_role("columnheader", name="advantage")).to_be_visible()
    expect(rewards.get_by_role("row")).to_have_count(1 + 8)
    trained = re.compile(r"lab/practice@\d+ from @\d+ · choices · job \w+.*1 of 1 gradient step")
    expect(notebook.run(train)).to_contain_text(trained)
    expect(notebook.run(collections)).to_contain_text("choices")
    notebook.screenshot("first-cells")


def test_an_error_of_ours_shows_as_two_lines(notebook):
    notebook.run("%load_ext rolloutlab")
    shown = notebook.text_of(notebook.run("%rewards nothing", fails=True))
    assert "nothing" in shown
    assert len(shown.splitlines()) == 2
