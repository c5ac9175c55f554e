"""Additional histories of a trajectory as a tree, in the text, the HTML and the view of a group."""

import json
import re
from html.parser import HTMLParser

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.trajectories.group_view import GroupView
from tests.environments.conftest import Answerer
from tests.sampling_services import URL

HOSTILE = "<script>alert(1)</script></details></td> \x1b[31m \u202eabc"


@pytest.fixture
def lab(tmp_path):
    """A notebook whose policy answers `to ...` to the last message."""
    policy = Answerer()
    policy.answer = lambda messages: f"to {messages[-1]['content']}"
    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(policy), backoff=0))
    session.connect(URL)
    session.model("tester/policy")
    yield session
    session.close()


class Talk:
    """A conversation of a program: `ask` continues it."""

    def __init__(self, client, *messages):
        self.client, self.messages = client, list(messages)

    async def ask(self, text, **options):
        """The conversation after one more question and its answer, as texts alone."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = await self.client.chat.completions.create(messages=messages, **options)
        content = answer.choices[-1].message.content
        return Talk(self.client, *messages, {"role": "assistant", "content": content})


async def branching(row, client):
    """Two branches after the first answer, the second with two of its own, and a sub-agent."""
    first = await Talk(client).ask("q1")
    left = await first.ask("left")
    right = await first.ask("right")
    await left.ask("x")
    await right.ask("y")
    await right.ask("z")
    await Talk(client).ask("a task")


TREE = [
    (0, "history 1, a branch after answer 1 of the main history: 2 answers, 6 tokens"),
    (1, "history 2, a branch after answer 2 of history 1: 1 answer, 3 tokens"),
    (0, "history 3, on its own: 1 answer, 3 tokens"),
]


class Folds(HTMLParser):
    """The titles of what is folded in the table of a group, each with how deep it is, and its own text."""

    def __init__(self, source):
        super().__init__()
        self.titles, self.texts, self.tags, self._open, self._summary = [], [], set(), [], False
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._summary = tag == "summary"
        if tag == "details":
            self._open.append(None)
        if tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag):
        self._summary = False
        if tag == "details":
            self._open.pop()

    def handle_data(self, data):
        if self._summary and data.startswith("history"):
            self.titles.append((len(self._open) - 2, data))
            self._open[-1] = len(self.texts)
            self.texts.append("")
        elif self._open and self._open[-1] is not None:
            self.texts[self._open[-1]] += data


def text_tree(shown):
    """The titles in the lines of a text, each with how deep it is."""
    lines = [line for line in shown.splitlines() if "└─" in line]
    depths = [line.index("└") for line in lines]
    titles = [re.search("└─ (.*? tokens?):", line)[1] for line in lines]
    return [((depth - depths[0]) // 3, title) for depth, title in zip(depths, titles, strict=True)]


def members(lab, name="agent"):
    view = GroupView(lab.store, lab.store.find(name).id, 0)
    return json.loads(json.dumps(view.state()))["shown"]["group"]["members"]


def texts(turns):
    return [turn["content"]["text"] for turn in turns]


def test_each_branch_is_below_the_history_that_it_leaves_in_text_and_html(lab):
    lab.rollouts("agent", branching)
    group = lab.collection("agent/0")
    assert text_tree(repr(group)) == TREE
    assert "6 tokens: user: right assistant: to right user: y" in repr(group)
    page = Folds(group._repr_html_())
    assert page.titles == TREE
    assert page.texts == [
        "user right assistant to rightuser y assistant to y",
        "user z assistant to z",
        "user a task assistant to a task",
    ]


def test_the_view_gets_of_each_branch_where_it_leaves_and_what_is_its_own(lab):
    lab.rollouts("agent", branching)
    [member] = members(lab)
    assert texts(member["turns"]) == ["to q1", "left", "to left", "x", "to x"]
    places = [(each["parent"], each["place"], texts(each["turns"])) for each in member["branches"]]
    assert places == [
        (0, 1, ["right", "to right", "y", "to y"]),
        (1, 1, ["z", "to z"]),
        (None, 0, ["a task", "to a task"]),
    ]
    assert [each["title"] for each in member["branches"]] == [title for _, title in TREE]


def test_other_choices_of_one_answer_are_in_its_place(lab):
    async def solve(row, client):
        second = await (await Talk(client).ask("q1")).ask("q2", n=2)
        await second.ask("q3")

    lab.rollouts("agent", solve)
    [(depth, title)] = text_tree(repr(lab.collection("agent/0")))
    assert (depth, title) == (0, "history 1, a branch in the place of answer 2 of the main history: 1 answer, 3 tokens")
    [member] = members(lab)
    assert [(each["parent"], each["place"]) for each in member["branches"]] == [(0, 2)]


def test_an_agent_that_shares_no_more_than_a_system_message_is_on_its_own(lab):
    async def solve(row, client):
        system = {"role": "system", "content": "Be brief."}
        await Talk(client, system).ask("q1")
        await Talk(client, system).ask("a task")

    lab.rollouts("agent", solve)
    assert text_tree(repr(lab.collection("agent/0"))) == [(0, "history 1, on its own: 1 answer, 3 tokens")]
    assert texts(members(lab)[0]["branches"][0]["turns"]) == ["Be brief.", "a task", "to a task"]


def test_answers_of_the_prompt_are_no_turns(lab):
    async def solve(row, client):
        shots = [{"role": role, "content": role} for role in ("user", "assistant")]
        first = await Talk(client, *shots).ask("q1")
        await first.ask("left")
        await first.ask("right")

    lab.rollouts("agent", solve)
    [(_, title)] = text_tree(repr(lab.collection("agent/0")))
    assert title.startswith("history 1, a branch after answer 1 of the main history")
    assert members(lab)[0]["branches"][0]["place"] == 1


def test_calls_that_differ_are_other_answers_and_results_come_with_their_branch(lab):
    def call(city):
        function = {"name": "weather", "arguments": json.dumps({"city": city})}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}

    async def solve(row, client):
        for city in ("Rome", "Oslo"):
            policy_calls.append(call(city))
            sampled = await client.chat.completions.create(messages=[{"role": "user", "content": "q"}], tools=tools)
            result = {"role": "tool", "tool_call_id": "1", "content": f"rain in {city}"}
            message = sampled.choices[0].message
            await client.chat.completions.create(
                messages=[{"role": "user", "content": "q"}, message, result], tools=tools
            )

    policy_calls, tools = [], [{"type": "function", "function": {"name": "weather"}}]
    lab._connector.http._transport.handler.answer = lambda messages: (
        policy_calls[-1] if len(messages) == 1 else f"it says {messages[-1]['content']}"
    )
    lab.rollouts("agent", solve)
    [(_, title)] = text_tree(repr(lab.collection("agent/0")))
    assert title.startswith("history 1, a branch in the place of answer 1 of the main history: 2 answers")
    called, said = members(lab)[0]["branches"][0]["turns"]
    assert (called["calls"][0]["result"]["text"], said["content"]["text"]) == ("rain in Oslo", "it says rain in Oslo")


@pytest.fixture
def imported(lab, tmp_path):
    """A trajectory of another tool with additional histories."""

    def user(text):
        return {"role": "user", "content": text}

    def answer(text, logprobs=True):
        message = {"role": "assistant", "content": text}
        content = [{"token": "a", "logprob": -0.5, "top_logprobs": [], "bytes": None}]
        return {
            "finish_reason": "stop",
            "index": 0,
            "logprobs": {"content": content} if logprobs else None,
            "message": message,
        }

    def put(*further):
        main = [user("q1"), answer("a1"), user("q2"), answer("a2")]
        histories = [{"messages_and_choices": items, "tools": None} for items in further]
        record = {"messages_and_choices": main, "tools": None, "additional_histories": histories, "reward": 1.0}
        (tmp_path / "art.jsonl").write_text(json.dumps({"trajectories": [record]}))
        lab.files.import_(tmp_path / "art.jsonl", "foreign")
        return lab.collection("foreign/0")

    put.user, put.answer = user, answer
    return put


def test_histories_of_other_tools_are_a_tree_whether_or_not_they_were_sampled(imported):
    user, answer = imported.user, imported.answer
    group = imported(
        [user("q1"), {"role": "assistant", "content": "a1"}, user("other"), answer("b")],
        [user("q1"), answer("a1", logprobs=False), user("another"), {"role": "assistant", "content": "c"}],
        [user("q1"), answer("a1"), user("sampled again"), answer("d")],
        [user("summary of it"), answer("e")],
        [],
    )
    assert Folds(group._repr_html_()).titles == text_tree(repr(group))
    assert [title for _, title in text_tree(repr(group))] == [
        "history 1, a branch after answer 1 of the main history: 1 answer, 1 token",
        "history 2, a branch after answer 1 of the main history: 1 answer, 0 tokens",
        "history 3, a branch in the place of answer 1 of the main history: 2 answers, 2 tokens",
        "history 4, on its own: 1 answer, 1 token",
        "history 5, on its own: 0 answers, 0 tokens",
    ]


def test_what_a_branch_says_is_text(imported):
    group = imported([imported.user("q1"), {"role": "assistant", "content": "a1"}, imported.user(HOSTILE)])
    page = Folds(group._repr_html_())
    assert "script" not in page.tags
    assert "<script>alert(1)</script></details></td>" in page.texts[0]
    for shown in (repr(group), group._repr_html_()):
        assert all(character.isprintable() or character == "\n" for character in shown)


def test_of_very_many_histories_the_first_are_shown_and_where_the_rest_is(imported):
    group = imported(*[[imported.user(f"task {i}"), imported.answer("done")] for i in range(23)])
    assert repr(group).count("on its own") == 20
    assert Folds(group._repr_html_()).titles[-1][1].startswith("history 20,")
    for shown in (repr(group), group._repr_html_()):
        assert "... and 3 more histories: lab.collection(" in shown.replace("&#x27;", "'")


def test_a_chain_of_very_many_branches_is_shown(imported):
    user, chain = imported.user, []
    for i in range(100):
        chain.append([*(chain[-1] if chain else []), user(f"q{i}"), {"role": "assistant", "content": f"a{i}"}])
    titles = text_tree(repr(imported(*chain)))
    assert titles[-1] == (19, "history 20, a branch after answer 19 of history 19: 1 answer, 0 tokens")
