"""All of a text is seen, and none of it acts."""

import json

import pytest

from rolloutlab.widgets.visible import visible, with_fix


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    text = "naïve\tmaybe\n日本語 שלום 👩‍🚀 <b>&amp;</b>"
    assert visible(text) == text


def test_the_line_ends_of_other_systems_are_line_ends() -> None:
    assert visible("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("over\rwritten", "over␍written"),
        ("a\x00b\x7f", "a␀b␡"),
        ("gpj.\u202eexe", "gpj.⟨202e⟩exe"),
        ("pay\u200bpal", "pay⟨200b⟩pal"),
        ("\x9b31m", "⟨009b⟩31m"),
        ("half \ud83d", "half ⟨d83d⟩"),
    ],
)
def test_what_acts_instead_of_being_seen_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert json.loads(json.dumps(visible(text), ensure_ascii=False).encode()) == seen


def test_a_line_of_a_report_is_parted_from_what_to_type() -> None:
    assert with_fix("no reward yet -> %%reward x") == {"text": "no reward yet", "fix": "%%reward x"}
    assert with_fix("plain") == {"text": "plain", "fix": ""}
    assert with_fix("the mean -> nothing: this is expected") == {"text": "the mean: this is expected", "fix": ""}
