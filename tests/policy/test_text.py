"""Text comes as soon as it is settled, and ends before a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.policy.parsing import TextStream, cut_at_stop


def decode(ids):
    """Bytes as tokens: a character of several bytes is unreadable until its last."""
    return bytes(ids).decode(errors="replace")


def shown(text, **options):
    stream = TextStream(decode, **options)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.feed(byte))
        if stream.stopped:
            break
    return pieces, stream


def test_a_character_of_several_tokens_comes_whole():
    pieces, _ = shown("aé🦊b")
    assert pieces == ["a", "", "é", "", "", "", "🦊", "b"]


@given(st.text(alphabet="abc é🦊", max_size=30), st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3))
def test_what_is_shown_is_the_text_before_the_first_stop_string(text, stops):
    pieces, stream = shown(text, stops=stops)
    whole = cut_at_stop(text, stops)
    assert stream.stopped == (whole != text)
    assert whole.startswith("".join(pieces))
    if stream.stopped:
        assert "".join(pieces) == whole
    held = whole[len("".join(pieces)) :]
    assert not held or any(stop.startswith(held) or held in stop for stop in stops)


@given(st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=3))
def test_of_several_stop_strings_the_first_to_come_counts(text, stops):
    cut = cut_at_stop(text, stops)
    assert text.startswith(cut)
    assert not any(stop in cut for stop in stops)
    assert cut == text or any(text[len(cut) :].startswith(stop) for stop in stops)


def test_nothing_is_shown_from_the_marker_of_a_call_on():
    pieces, stream = shown("say <call>{}", held=["<call>"])
    assert "".join(pieces) == "say "
    assert not stream.stopped


def test_where_calls_have_no_marker_nothing_is_shown_before_the_end():
    assert "".join(shown('{"name"', held=[""])[0]) == ""


def test_a_stop_string_counts_though_its_token_ends_within_a_character():
    def of_words(ids):
        return b"".join([b"see ", b"end\xc3", b"\xa9 on"][i] for i in ids).decode(errors="replace")

    stream = TextStream(of_words, stops=["end"])
    assert (stream.feed(0) + stream.feed(1), stream.stopped) == ("see ", True)
