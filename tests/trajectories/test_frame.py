"""Frames of rolloutlab: how they show text that a policy wrote."""

import pytest

from rolloutlab.trajectories.frame import Frame


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "\u202egnp.exe"])
def test_a_styled_frame_shows_untrusted_text_as_text(name):
    frame = Frame({name: [name]}, index=[name])
    html = frame.style.to_html()
    assert name not in html
    assert html.count("onerror") == name.count("onerror") * 3
    assert frame.columns.tolist() == [name]
