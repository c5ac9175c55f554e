"""Reasoning in a field, or at the beginning of a text."""

import pytest

from rolloutlab.api.wire.reasoning import reasoning_of, split_reasoning


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("yes", ("", "yes")),
        ("", ("", "")),
        ("<think>hm</think>yes", ("hm", "yes")),
        ("\n<think>\nhm\n\nhm\n</think>\n\n yes\n", ("hm\n\nhm", " yes\n")),
        ("<think>\n\n</think>\n\nyes", ("", "yes")),
        ("<think>cut off by the limit of tok", ("cut off by the limit of tok", "")),
        ("<think>a</think>b</think>c", ("a", "b</think>c")),
        ("use <think> and </think> for it", ("", "use <think> and </think> for it")),
        ("<thinking>hm</thinking>yes", ("", "<thinking>hm</thinking>yes")),
    ],
)
def test_reasoning_is_what_is_between_the_marks_at_the_beginning(text, parts):
    assert split_reasoning(text) == parts


def test_reasoning_that_began_in_the_prompt_ends_at_its_mark():
    assert split_reasoning("hm\n</think>\n\nyes", begun=True) == ("hm", "yes")
    assert split_reasoning("<think>hm</think>yes", begun=True) == ("hm", "yes")
    assert split_reasoning("hm", begun=True) == ("hm", "")


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({"reasoning_content": "hm"}, ("hm", "yes")),
        ({"reasoning": "hm"}, ("hm", "yes")),
        ({"reasoning_content": None, "reasoning": "hm"}, ("hm", "yes")),
        ({"reasoning_content": ""}, ("", "yes")),
        ({}, ("", "yes")),
    ],
)
def test_reasoning_is_read_from_the_fields_of_several_services(message, parts):
    assert reasoning_of(message, "yes") == parts


def test_reasoning_is_read_from_the_content_of_a_service_that_does_not_split_it():
    assert reasoning_of({}, "<think>hm</think>yes") == ("hm", "yes")
    assert reasoning_of({}, "hm</think>\n\nyes") == ("hm", "yes")  # the prompt had the first mark
    assert reasoning_of({}, "hm\n</think>yes") == ("hm", "yes")
    assert reasoning_of({}, "write <think>…</think>") == ("", "write <think>…</think>")
    sentence = "Close it with </think> in HTML, then reload"
    assert reasoning_of({}, sentence) == ("", sentence)
