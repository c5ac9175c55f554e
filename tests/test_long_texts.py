"""Our own patterns over the text of others: none takes more than in proportion to its length.

Each is given 200 kB of what would cost it most. The limit is of processor time: what grows with the square takes
minutes.
"""

import signal
from contextlib import suppress

import pytest

from rolloutlab.api.http.errors import names_a_thing
from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.api.wire.reasoning import is_unread_mark, split_content, without_empty_thought, without_thought
from rolloutlab.errors import InputError
from rolloutlab.integrations.openai_graders.templates import Template
from rolloutlab.integrations.reasoning_gym import final_answer
from rolloutlab.policy import harmony
from rolloutlab.policy.call_forms import _FORMS
from rolloutlab.sampling.prompt import as_messages
from rolloutlab.sampling.template import template_of
from rolloutlab.store.decoded import _SPECIAL

SIZE, SECONDS = 200_000, 20.0


def of(unit, before="", after="!"):
    return before + unit * (SIZE // len(unit)) + after


UNITS = {
    "marks": of("think", "<"),
    "open marks": of("<think"),
    "thoughts": of("<think>"),
    "space after a thought": of(" ", "<think>"),
    "word after a thought": of("a", "<think>"),
    "lines": of("\n", after="x"),
    "tabs after lines": of("\n\t"),
    "answers": of("<answer>"),
    "parameters": of("<parameter=a>", "<function=f>", "</parameter></function>"),
    "open parameters": of("<parameter=", "<function=f>", "</parameter></function>"),
    "parameters without an end": of("<parameter=a>", "<function=f>", "</function>"),
    "arguments": of("<arg_key>a</arg_key><arg_value>", "f", "</arg_value>"),
    "arguments without an end": of("<arg_key>a</arg_key><arg_value>", "f"),
    "channels": of(" ", "<|start|>assistant", "<|channel|>x<|message|>a<|end|>"),
    "recipients": of("a", "to=", "<|message|>a"),
    "spaces": of(" ", after="<|message|>a"),
    "braces": of("{{"),
    "open names": of("{{ a "),
    "spaces in a name": of(" ", "{{a", "}"),
    "brackets": of("["),
    "words": of("a"),
    "dots": of("a."),
    "bars": of("|", "<|"),
    "backslashes": of("\\", '"'),
}


def parsed(form):
    """What reads the calls of a form."""
    tools = [FunctionTool.model_validate({"type": "function", "function": {"name": "f"}})]
    return lambda text: form.parse(f"{form.opening}{text}{form.closing}", tools)


READS = {
    "is_unread_mark": is_unread_mark,
    "split_content": split_content,
    "without_thought": without_thought,
    "without_empty_thought": without_empty_thought,
    "names_a_thing": names_a_thing,
    "final_answer": final_answer,
    "harmony": harmony.parse,
    "beginning of harmony": lambda text: harmony.parse(text, ended=False),
    "special tokens": lambda text: _SPECIAL.sub("", text),
    "a prompt": lambda text: template_of(lambda row: text).make_group({"a": [1]}, {}),
    "messages": as_messages,
    "a grader's template": Template,
    **{f"calls {i} in {form.opening}": parsed(form) for i, form in enumerate(_FORMS)},
}


@pytest.fixture
def bounded():
    """An error once this process has computed for so long, in any thread; `re` lets it come at its end."""

    def ended(*_):
        raise AssertionError(f"more than {SECONDS} s of processor time")

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("text", UNITS)
def test_a_long_text_costs_no_more_than_in_proportion(bounded, read, text):
    with suppress(InputError):  # it may be refused
        READS[read](UNITS[text])
