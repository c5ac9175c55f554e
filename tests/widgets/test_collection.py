"""How a collection looks: text that is stable, and HTML in which what anyone wrote is text."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, Choice, SystemMessage, ToolMessage, UserMessage
from rolloutlab.objective.advantages import Reason, token_weights
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import WHY_NOT, preflight
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.trajectories.members import members_of
from rolloutlab.widgets import collection as render
from rolloutlab.widgets.kit.parts import style

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&lt;b&gt;\"'</td></table></details>"
TAGS = {
    "style",
    "p",
    "b",
    "i",
    "div",
    "span",
    "details",
    "summary",
    "code",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}


def text(name: str, groups: list[Group]) -> str:
    return render.text(name, groups, preflight(members_of(groups), Options()), counted(groups))


def html(name: str, groups: list[Group]) -> str:
    return render.html(name, groups, preflight(members_of(groups), Options()), counted(groups))


def counted(groups: list[Group]) -> render.Counts:
    rewards = [t.reward for group in groups for t in group.trajectories if t.reward is not None]
    left = groups[render.MAX_GROUPS].name if len(groups) > render.MAX_GROUPS else ""
    return render.Counts(len(groups), sum(len(group.trajectories) for group in groups), rewards, left)


class Page(HTMLParser):
    """What a browser makes of it: the tags with their attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "br":
            self.text += "\n"
            return
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def trajectory(
    answer: str = "Paris", reward: float | None = None, position: int = 0, tokens: int = 2, **overrides: Any
) -> StoredTrajectory:
    message, content = {"role": "assistant", "content": answer}, [{"token": "a", "logprob": -0.5, "top_logprobs": []}]
    record = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content * tokens}}
    choice = Choice.model_validate(record)
    record = {
        "id": position,
        "name": f"capitals/0/{position}",
        "items": (choice,),
        "row": {},
        "model": "lab/practice",
        "step": 0,
        "sampling": {},
        "created_at": "2026-01-31T12:00:00+00:00",
        "reward": reward,
    }
    return StoredTrajectory(**record | overrides)


def group(*trajectories: StoredTrajectory, name: str = "capitals/0", prompt: Any = "Capital of France?") -> Group:
    return Group(0, name, (UserMessage(role="user", content=prompt),), {}, trajectories)


def scored(*rewards: float | None, number: int = 0, **overrides: Any) -> Group:
    names = [f"capitals/{number}/{i}" for i in range(len(rewards))]
    members = [trajectory(f"Answer {i}", r, i, name=names[i], **overrides) for i, r in enumerate(rewards)]
    return group(*members, name=f"capitals/{number}")


def test_the_text_has_each_group_with_its_completions_rewards_and_advantages():
    assert text("capitals", [scored(1.0, 0.0, None)]).splitlines() == [
        "capitals: 3 completions in 1 group, mean reward 0.500 (2 scored)",
        "",
        "capitals/0  Capital of France?",
        "        1  +1.00  Answer 0",
        "        0  -1.00  Answer 1",
        "        -         Answer 2",
    ]


def in_words(name: str, groups: list[Group]) -> str:
    """The HTML as it is read, with the colon of the text after its name."""
    return Page(html(name, groups).partition("</style>")[2]).text.replace(name, f"{name}:", 1)


@pytest.mark.parametrize("show", [text, in_words])
def test_the_heading_counts_what_is_there_and_what_is_scored(show):
    assert show("a", [scored(None)]).startswith("a: 1 completion in 1 group, not scored yet")
    assert show("a", [scored(1.0, 0.5), scored(0.0, 0.5, number=1)]).startswith(
        "a: 4 completions in 2 groups, mean reward 0.500"
    )
    assert "scored)" not in show("a", [scored(1.0, 0.5)])


def test_the_html_has_the_same_rows_as_the_text():
    page = Page(html("capitals", [scored(1.0, 0.0, None)]))
    assert page.tags <= TAGS
    assert page.open == []
    for words in (
        "capitals/0",
        "Capital of France?",
        "Answer 0",
        "+1.00",
        "Answer 1",
        "\N{MINUS SIGN}1.00",
        "Answer 2",
    ):
        assert words in page.text


@pytest.mark.parametrize("show", [text, html])
def test_an_advantage_is_the_one_that_the_trainer_uses(show):
    groups = [scored(0.1, 0.9, 0.4), scored(1.0, 0.0, 0.0, 0.0, number=1, tokens=7)]
    shown = re.findall(r"[+-]\d\.\d\d", show("a", groups).replace("\N{MINUS SIGN}", "-"))
    shares = token_weights(members_of(groups), Options())
    best_first = [sorted(of_group, key=lambda share: -share.member.reward) for of_group in shares]
    assert shown == [f"{share.advantage:+.2f}" for of_group in best_first for share in of_group]


def test_where_nothing_trains_it_says_why_instead_of_an_advantage():
    groups = [scored(1.0, 0.0, 0.5, None), scored(0.5, 0.5, number=1), scored(1.0, 0.0, number=2, tokens=0)]
    rows = [line for line in text("a", groups).splitlines() if "Answer" in line]
    assert rows == [
        "        1    +1.00  Answer 0",
        "      0.5 the mean  Answer 2",
        "        0    -1.00  Answer 1",
        "        -           Answer 3",
        "      0.5 equal rewards  Answer 0",
        "      0.5 equal rewards  Answer 1",
        "        1 no logprobs  Answer 0",
        "        0 no logprobs  Answer 1",
    ]
    assert re.findall("the mean|equal rewards|no logprobs", html("a", groups)) == [
        "the mean", *["equal rewards"] * 2, *["no logprobs"] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("show", "times"), [(text, "Paris \N{MULTIPLICATION SIGN}2"), (html, "\N{MULTIPLICATION SIGN}2</b> #0 #1")]
)
def test_completions_of_which_the_same_is_shown_are_one_row_whoever_scored_them(show, times):
    given = [
        ("Paris", 1.0, "function", 2),
        ("Paris", 1.0, "hand", 2),
        ("Paris", 1.0, "hand", 0),
        ("Lyon", 0.0, "hand", 2),
    ]
    members = [
        trajectory(answer, reward, i, tokens, source=source) for i, (answer, reward, source, tokens) in enumerate(given)
    ]
    shown = show("a", [group(*members)])
    assert times in shown
    assert shown.count("no logprobs") == 1  # of a row of its own


def said(**message: Any) -> Any:
    return Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": None, **message}}
    )


REFUSALS = [said(refusal=f"not about {what}") for what in ("bombs", "poison")]
CALLS = [said(function_call={"name": "find", "arguments": f'{{"at": {at}}}'}) for at in (1, 2)]
TOOLS = [
    said(tool_calls=[{"id": "1", "type": "function", "function": {"name": "find", "arguments": f"{at}"}}])
    for at in (1, 2)
]
PARTS = [
    AssistantMessage(
        role="assistant", content=[{"type": "text", "text": "I "}, {"type": "refusal", "refusal": refusal}]
    )
    for refusal in ("will not", "cannot")
]
SPOKEN = [
    said(audio={"id": "1", "data": "", "expires_at": 1, "transcript": transcript}) for transcript in ("bonjour", "hola")
]


@pytest.mark.parametrize("show", [text, in_words])
@pytest.mark.parametrize(
    ("items", "words"),
    [
        (REFUSALS, ["[refused] not about bombs", "[refused] not about poison"]),
        (CALLS, ['find({"at": 1})', 'find({"at": 2})']),
        (TOOLS, ["find(1)", "find(2)"]),
        (PARTS, ["I will not", "I cannot"]),
        (SPOKEN, ["bonjour", "hola"]),
    ],
    ids=["refusals", "function calls", "tool calls", "parts", "speech"],
)
def test_answers_that_differ_beside_their_text_are_shown_each(show, items, words):
    members = [trajectory(position=i, items=(item,), reward=1.0, given=0) for i, item in enumerate(items)]
    shown = show("a", [group(*members)])
    assert [word for word in words if word in shown] == words
    assert "\N{MULTIPLICATION SIGN}2" not in shown


def test_a_refusal_is_not_the_answer_of_the_same_words():
    members = [
        trajectory(position=i, items=(said(**m),), reward=1.0)
        for i, m in enumerate([{"content": "no"}, {"refusal": "no"}])
    ]
    assert render.visible_text(members[0]) != render.visible_text(members[1])


def test_an_answer_that_the_service_broke_off_is_not_the_one_that_a_limit_cut_off():
    message = {"role": "assistant", "content": "Par"}
    record = {"finish_reason": "length", "index": 0, "message": message}
    ended = [Choice.model_validate(record | more) for more in ({}, {"reported_finish_reason": "abort"})]
    shown = html("a", [group(*(trajectory(position=i, items=(each,), reward=1.0) for i, each in enumerate(ended)))])
    assert "cut off by max_tokens" in shown
    assert "broken off by the service" in shown


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason != Reason.UNSCORED])
def test_each_reason_has_words_short_enough_for_a_column(reason):
    assert 0 < len(WHY_NOT[reason]) <= 13


@pytest.mark.parametrize("show", [text, html])
@pytest.mark.parametrize("rewards", [(1e200, 0.0), (1e308, 1e308), (1e308, -1e308), (1e-300, 0.0)])
def test_any_finite_reward_can_be_shown(show, rewards):
    shown = show("a", [scored(*rewards)])
    assert f"{rewards[0]:.3g}" in shown
    assert not re.search(r"\b(inf|nan)\b", shown)


@pytest.mark.parametrize("show", [text, in_words])
@pytest.mark.parametrize(
    ("rewards", "mean"),
    [((1e-7, 1e-7), "1e-07"), ((1e300, 1e300), "1e+300"), ((0.625, 0.625), "0.625"), ((0.1, 0.2, -0.3), "0.000")],
)
def test_the_mean_of_a_heading_has_a_few_digits_that_say_something(show, rewards, mean):
    assert f"mean reward {mean}" in show("a", [scored(*rewards)]).replace("-0.000", "0.000")


@pytest.mark.parametrize(("show", "mark"), [(text, "Par [cut off]"), (html, "<b>cut off by max_tokens</b>")])
def test_a_completion_that_was_cut_off_is_marked(show, mark):
    message = {"role": "assistant", "content": "Par"}
    cut = Choice.model_validate({"finish_reason": "length", "index": 0, "message": message})
    assert mark in show("a", [group(trajectory(items=(cut,)))])
    assert "cut off" not in show("a", [group(trajectory())])


@pytest.mark.parametrize(
    "groups",
    [
        [group(trajectory(HOSTILE))],
        [group(trajectory(), prompt=HOSTILE)],
        [group(trajectory(), prompt=[{"type": "text", "text": HOSTILE}])],
        [group(trajectory(), name=HOSTILE)],
        [group(trajectory(items=(UserMessage(role="user", content=HOSTILE),)))],
        [*[group()] * render.MAX_GROUPS, group(name=HOSTILE)],
    ],
    ids=["completion", "prompt", "part of a prompt", "group", "conversation", "group that is left out"],
)
def test_what_anyone_wrote_is_text(groups):
    page = Page(html(HOSTILE, groups))
    assert page.tags <= TAGS | {"br"}
    assert page.attributes <= {"open", "class", "style", "align", "aria-label", "tabindex"}
    assert page.open == []
    assert HOSTILE in page.text


def test_a_completion_is_shown_whole_and_as_it_is_in_html():
    answer = "line one\n  line two\n" + "x" * 500
    assert answer in Page(html("a", [group(trajectory(answer))])).text


def test_a_completion_is_one_short_line_in_text():
    lines = text("a", [group(trajectory("line one\n\tline  two\n" + "x" * 500))]).splitlines()
    assert len(lines) == 4
    assert lines[3].endswith("...")
    assert "line one line two" in lines[3]
    assert len(lines[3]) < 130


def test_a_completion_cannot_speak_to_the_terminal():
    shown = text("a", [group(trajectory("\x1b[2J\x1b]0;title\x07\x9b31m\u202eabc"), prompt="\x1b[2Jx")])
    assert all(character.isprintable() for line in shown.split("\n") for character in line)


@pytest.mark.parametrize("show", [text, html])
def test_nothing_that_differs_from_run_to_run_is_shown(show):
    def shown(**overrides: Any) -> str:
        return show("a", [group(trajectory(reward=1.0, **overrides))])

    first = shown()
    assert shown(id=99, created_at="2031-05-06T07:08:09+00:00", sampling={"seed": 5}) == first
    assert not re.search(r"0x[0-9a-f]{6}|object at|\d\d:\d\d", first)


@pytest.mark.parametrize("show", [text, html])
def test_of_many_groups_the_first_are_shown_and_how_to_see_the_rest_is_told(show):
    groups = [group(trajectory(), name=f"capitals/{i}") for i in range(11)]
    shown = show("capitals", groups)
    assert "11 completions in 11 groups" in shown
    assert "capitals/3" in shown
    assert "... and 7 more groups: %group capitals/4" in shown
    assert "more group" not in show("capitals", groups[:4])


def test_of_several_groups_the_prompt_is_the_last_thing_that_the_user_said():
    prompt = (
        SystemMessage(role="system", content="Be brief."),
        UserMessage(role="user", content="First?"),
        UserMessage.model_validate({"role": "user", "content": [{"type": "text", "text": "Second?"}]}),
    )
    for show in (text, html):
        shown = show("a", [Group(0, "a/0", prompt, {}), Group(1, "a/1", prompt, {})])
        assert "Second?" in shown
        assert "First?" not in shown
    assert "a/0  Second?" in text("a", [Group(0, "a/0", prompt, {})])


@pytest.mark.parametrize("show", [text, lambda name, groups: Page(html(name, groups)).text])
def test_one_group_alone_shows_its_whole_prompt(show):
    prompt = (SystemMessage(role="system", content="Be brief."), UserMessage(role="user", content="Second?"))
    shown = show("a", [Group(0, "a/0", prompt, {})])
    assert "system" in shown
    assert "Be brief." in shown


def test_the_html_of_a_group_has_tool_calls_their_results_and_the_tools_that_were_offered():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = Choice.model_validate({"finish_reason": "tool_calls", "index": 0, "message": message})
    response = ToolMessage(role="tool", content="42", tool_call_id="1")
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]
    shown = Page(html("a", [group(trajectory(items=(asked, response), extra={"tools": tools}))])).text
    for words in ('add({"a": 1})', "tool 42", "1 tool offered", "Adds.", "ended on a tool call"):
        assert words in shown


def test_a_completion_of_a_megabyte_is_cut_in_html_and_says_so():
    shown = html("a", [group(trajectory("x" * 1_000_000))])
    assert len(shown) < 10_000 + len(style())
    assert "and 996,000 more characters" in shown


def test_what_acts_on_a_terminal_or_turns_the_direction_of_text_is_written_out_in_html():
    shown = html("a", [group(trajectory("\x1b[2J\u202eabc"), prompt="\x07ring")])
    assert "␛[2J⟨202e⟩abc" in shown
    assert "␇ring" in shown


def test_a_collection_without_groups_is_its_heading():
    heading = "capitals: 0 completions in 0 groups, not scored yet"
    assert text("capitals", []) == heading
    assert Page(html("capitals", [])).text.rstrip().endswith(heading.replace(": ", " ", 1))


def test_a_group_without_completions_is_its_prompt():
    assert text("capitals", [group()]).splitlines()[1:] == ["", "capitals/0  Capital of France?"]
    assert "Capital of France?" in html("capitals", [group()])


def test_a_group_without_a_user_message_is_its_name():
    assert text("a", [Group(0, "a/0", (SystemMessage(role="system", content="x"),), {})]).splitlines()[2] == "a/0  "


REASONED = [
    pytest.param({"content": "Paris", "reasoning_content": "hm <b>"}, id="in a field"),
    pytest.param({"content": "Paris", "reasoning": "hm <b>"}, id="in a field of another service"),
    pytest.param({"content": "<think>\nhm <b>\n</think>\n\nParis"}, id="in the content"),
    pytest.param({"content": "hm <b>\n</think>\n\nParis"}, id="in the content, begun by the template"),
]


def reasoned(message: dict[str, Any], *before: Any) -> Group:
    record = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", **message}}
    items = (*before, Choice.model_validate(record))
    fields = {"row": {}, "model": "lab/x", "step": 2, "sampling": {}, "created_at": "", "given": 0}
    return Group(
        1, "a/0", (UserMessage(role="user", content="?"),), {}, (StoredTrajectory(1, "a/0/0", items, **fields),)
    )


@pytest.mark.parametrize("message", REASONED)
def test_reasoning_is_folded_in_the_html_and_left_out_of_the_text(message) -> None:
    group = reasoned(message)
    assert "<details><summary>reasoning</summary>hm &lt;b&gt;</details>Paris" in html("a", [group])
    assert "Paris" in text("a", [group])
    assert "hm" not in text("a", [group])
    longer = reasoned(message, reasoned(message).trajectories[0].items[0], UserMessage(role="user", content="again"))
    assert html("a", [longer]).count("<summary>reasoning</summary>hm &lt;b&gt;</details>") == 2
    assert "hm" not in text("a", [longer])
    assert TAGS | {"i", "br"} >= Page(html("a", [longer])).tags


def test_reasoning_that_does_not_end_is_no_answer() -> None:
    group = reasoned({"content": "<think>hm, and so on"})
    assert "<details><summary>reasoning</summary>hm, and so on</details>" in html("a", [group])
    assert "hm" not in text("a", [group])


def test_what_a_user_quotes_is_no_reasoning() -> None:
    quoted = UserMessage(role="user", content="<think>not mine</think> what is that?")
    group = reasoned({"content": "Paris"}, quoted)
    assert "&lt;think&gt;not mine&lt;/think&gt;" in html("a", [group])
    assert "reasoning" not in html("a", [group])
