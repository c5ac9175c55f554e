"""What the lines of a report are made of."""

from rolloutlab.widgets.dry_run import with_fix


def test_a_line_of_a_report_is_parted_from_what_to_type() -> None:
    assert with_fix("no reward yet -> %%reward x") == {"text": "no reward yet", "fix": "%%reward x"}
    assert with_fix("plain") == {"text": "plain", "fix": ""}
    assert with_fix("the mean -> nothing: this is expected") == {"text": "the mean: this is expected", "fix": ""}
