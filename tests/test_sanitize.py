"""All of a text is seen, and none of it acts."""

import json

import pytest

from rolloutlab.sanitize import escape_control_chars, escape_to_one_line


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    text = "naïve\tmaybe\n日本語 שלום 👩‍🚀 <b>&amp;</b>"
    assert escape_control_chars(text) == text


def test_the_line_ends_of_other_systems_are_line_ends() -> None:
    assert escape_control_chars("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("over\rwritten", "over␍written"),
        ("a\x00b\x7f", "a␀b␡"),
        ("gpj.\u202eexe", "gpj.⟨202e⟩exe"),
        ("pay\u200bpal", "pay⟨200b⟩pal"),
        ("\x9b31m", "⟨009b⟩31m"),
        ("smuggled \U000e0041", "smuggled ⟨e0041⟩"),
        ("half \ud83d", "half ⟨d83d⟩"),
    ],
)
def test_what_acts_instead_of_being_seen_is_written_out(text: str, seen: str) -> None:
    assert escape_control_chars(text) == seen
    assert json.loads(json.dumps(escape_control_chars(text), ensure_ascii=False).encode()) == seen


def test_one_line_of_it_has_no_line_ends_and_a_longest_length() -> None:
    assert escape_to_one_line(" a\n\tb\x1b ") == "a b␛"
    assert escape_to_one_line("x" * 9, 8) == "xxxxx..."
