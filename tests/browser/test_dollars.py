"""What policies write about money: MathJax, which a page has for formulas, sees none of it."""

import pytest
from playwright.sync_api import expect

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.store.models import NewGroup
from tests.labs import lab_with, without_logprobs

pytestmark = pytest.mark.process

PROMPT = "What do $2 pens and $3 books cost?"
ANSWER = r"They cost $5 each and together $10, $\phantom{and this is hidden}$ or $$x^2$$, \(y^2\) or \[z^2\]."
SAMPLE = "%load_ext rolloutlab\nimport rolloutlab\nfrom IPython.display import HTML\nlab = rolloutlab.lab()"
FORMULA = "HTML('the formula $a^2$')"
SET = "mjx-container, .MathJax"
STATIC = (
    "HTML(lab.collection('dollars')._repr_html_())",
    "HTML(lab.collection('dollars/0')._repr_html_())",
    "HTML(lab.rewards('dollars')._repr_html_())",
    "lab.search('pens and books', k=2)",
    "lab.collection('dollars').to_frame()",
    "lab.collection('dollars').to_frame()[['answer', 'prompt']].head(2)",
    "lab.rewards('dollars').to_frame()",
    "lab.search('pens and books', k=2, select=['#document']).to_frame()",
)
WIDGETS = {
    "lab.collection('dollars')": ".rl-view-groups article",
    "lab.rewards('dollars')": ".tabulator-row",
}


def test_dollars_in_completions_are_no_formulas(notebook, lab):
    prompt = NewGroup([UserMessage(role="user", content=PROMPT)], {})
    lab_with(lab.store, [ANSWER, ANSWER], name="dollars", prompts=[prompt], make=without_logprobs, model="practice")
    notebook.run(SAMPLE)
    outputs = [notebook.run(f"display({code})") for code in STATIC]
    views = {code: notebook.run(code) for code in WIDGETS}
    formula = notebook.run(FORMULA)
    expect(formula.locator(SET).first).to_be_visible()  # the page does set formulas, and has come to the last cell
    for code, shown in zip(STATIC, outputs, strict=True):
        assert shown.locator(SET).count() == 0, code
        text = shown.text_content() or ""
        assert "$5 each and" in text or "$2 pens and $3 books" in text, code  # a frame cuts long cells
    for code, part in WIDGETS.items():
        expect(views[code].locator(part).first).to_be_visible()
        assert views[code].locator(SET).count() == 0
        assert views[code].locator(".rl.tex2jax_ignore.mathjax_ignore").count() == 1, code
