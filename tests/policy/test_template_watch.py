"""Chat templates that do not end: a policy's start, its prompts and its jobs end with an error instead."""

import shutil
import threading

import pytest

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import Cancelled, PolicyError, RenderingError, TemplateTimeError
from rolloutlab.policy import rendering
from rolloutlab.policy.model import load_policy
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.template_watch import TemplateWatch

LOOPS = "{% for a in range(90000) %}" * 3 + "{% endfor %}" * 3
ENDLESS = {
    "loops": LOOPS,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{% set s = range(90000) | list %}{% for a in s %}{{ s | map('string') | join | length }}{% endfor %}",
}


@pytest.fixture
def watch(monkeypatch):
    """One that ends each rendering which is under way when it looks."""
    watch = TemplateWatch(seconds=0)
    monkeypatch.setattr(rendering, "template_watch", lambda: watch)
    return watch


def messages(content="hello"):
    message = {"role": "user", "content": content}
    return ChatRequest.model_validate({"model": "practice", "messages": [message]}).messages


@pytest.fixture
def renders(policy, monkeypatch):
    """A renderer whose template does something where the conversation asks for it."""

    def make(what, check=lambda: None):
        template = "{% if 'endless' in messages[-1].content %}" + what + "{% endif %}" + policy.tokenizer.chat_template
        monkeypatch.setattr(policy.tokenizer, "chat_template", template)
        return Renderer(policy.tokenizer, policy.end_ids, check=check)

    return make


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_template_that_does_not_end_is_ended_by_name_and_the_next_prompt_is_rendered(renders, watch, kind):
    renderer = renders(ENDLESS[kind])
    plain = renderer.prompt(messages())
    for _ in range(2):
        with pytest.raises(TemplateTimeError, match="the chat template took more than 0 s for one conversation"):
            renderer.prompt(messages("endless"))
        assert renderer.prompt(messages()) == plain


def test_a_job_is_cancelled_inside_of_a_template(renders):
    asked = threading.Event()

    def check():
        if threading.current_thread().name == "rolloutlab-templates" and asked.is_set():
            raise Cancelled

    renderer = renders(LOOPS, check)
    asked.set()
    with pytest.raises(Cancelled):
        renderer.prompt(messages("endless"))


def test_what_a_template_raises_itself_is_a_refusal(renders, watch):
    with pytest.raises(RenderingError, match="the chat template refuses this conversation"):
        renders("{{ raise_exception('no') }}").prompt(messages("endless"))


def test_a_policy_whose_template_never_ends_is_refused_at_its_start(tiny_policy, tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "template_watch", lambda: TemplateWatch(seconds=0))
    folder = shutil.copytree(tiny_policy, tmp_path / "policy")
    (folder / "chat_template.jinja").write_text(LOOPS)
    with pytest.raises(PolicyError, match="the chat template took more than 0 s"):
        load_policy(str(folder))
