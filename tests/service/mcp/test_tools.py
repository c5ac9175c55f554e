"""The tools, as a client of the context server sees them, over a lab that a notebook filled."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.service.mcp.tools import TOOLS
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded, Score
from tests.labs import lab_with

ITALY = [{"role": "user", "content": "the capital of Italy?"}, {"role": "assistant", "content": "Roma"}]


@pytest.fixture
def lab(visitor):
    """A lab with two prompts and two answers to each."""
    lab = Lab(visitor.home / "lab.db")
    told = {"France": ("Paris", "Lyon"), "Italy": ("Rome", "Milano")}
    with lab.draft() as draft:
        draft.add(
            Recorded(
                place="a test",
                collection="capitals",
                group=country,
                prompt=[UserMessage(role="user", content=f"the capital of {country}?")],
                items=[AssistantMessage(role="assistant", content=answer)],
                row={"country": country},
                reward=float(not wrong),
                source="function",
                model="lab/practice",
            )
            for country, answers in told.items()
            for wrong, answer in enumerate(answers)
        )
        draft.publish()
    yield lab
    lab.close()


@pytest.fixture
def call(visitor, lab):
    """Calls a tool with a token that may do everything; the answer, which must be none of an error."""
    token = visitor.signs_in(scope="lab:read lab:write")["access_token"]

    def send(name: str, error: bool = False, /, **arguments: Any) -> Any:
        result = visitor.calls("tools/call", token, {"name": name, "arguments": arguments}).json()["result"]
        assert result["isError"] is error, result
        text = result["content"][0]["text"]
        if error:
            return text
        assert json.loads(text) == result["structuredContent"]
        return result["structuredContent"]

    return send


def test_a_search_dictionary_finds_trajectories_with_passage_and_metadata(call):
    found = call("search_trajectories", where={"reward": {"$lt": 0.5}}, rank={"$knn": {"query": "Milano"}}, limit=1)
    (hit,) = found["hits"]
    assert hit["id"] == "capitals:1/1/1"
    assert "assistant: Milano" in hit["document"]
    assert hit["metadata"]["row.country"] == "Italy"
    assert isinstance(hit["score"], float)


def test_a_search_that_is_none_says_where_and_what_instead(call):
    said = call("search_trajectories", True, where={"reward": {"$less": 1}})
    assert "$less" in said
    assert "->" in said


@pytest.mark.long
def test_a_regular_expression_without_an_end_is_given_up_and_the_service_answers_meanwhile(call, visitor):
    said = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "a" * 90 + "!"}]
    call("add_trajectory", into="long", messages=said)
    with ThreadPoolExecutor() as threads:
        where = {"#document": {"$regex": "(?:a|aa)+$"}}
        search = threads.submit(call, "search_trajectories", True, where=where)
        answered = 0
        while not search.done():
            assert visitor.models("of-the-folder").status_code == 200
            answered += 1
    assert "of processor time" in search.result()
    assert answered > 10


def test_regular_expressions_of_a_search_have_a_length(call):
    where = {"$or": [{"#document": {"$regex": "a" * 600}}, {"#document": {"$not_regex": "b" * 600}}]}
    assert "have 1,200 characters; at most 1,000 are allowed" in call("search_trajectories", True, where=where)
    assert call("search_trajectories", where={"#document": {"$regex": r"(?i)ROME|lyo.$"}}, limit=1)["hits"]


def test_a_search_gives_ten_rows_unless_it_says_how_many(call):
    assert len(call("search_trajectories")["hits"]) == 4
    assert len(call("search_trajectories", limit={"limit": 3, "offset": 2})["hits"]) == 2


def test_a_search_sees_what_was_just_added(call):
    messages = [{"role": "user", "content": "a beast?"}, {"role": "assistant", "content": "a wombat"}]
    added = call("add_trajectory", into="beasts", messages=messages)
    found = call("search_trajectories", where={"#document": {"$contains": "wombat"}})
    assert [hit["id"] for hit in found["hits"]] == [added["id"]]


def test_one_trajectory_is_told_whole(call):
    found = call("get_trajectory", id="capitals/0/1")
    assert found["id"] == "capitals:1/0/1"
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
    assert found["reward"] == 0.0
    assert found["row"] == {"country": "France"}


@pytest.mark.parametrize("far", ["9", "9" * 30])
@pytest.mark.parametrize(
    "name", ["", "capitals", "capitals/0", "capitals/{}/0", "capitals/0/{}", "../0/0", "capitals/-1/0"]
)
def test_a_trajectory_that_is_not_there_is_an_error_with_a_hint(call, name, far):
    assert "->" in call("get_trajectory", True, id=name.format(far))


def test_collections_and_groups_are_listed_with_rewards(call):
    (collection,) = call("list_groups")["collections"]
    assert collection == {
        "collection": "capitals:1", "groups": 2, "trajectories": 4, "scored": 4, "mean_reward": 0.5,
    }  # fmt: skip
    listed = call("list_groups", collection="capitals", limit=1, offset=1)
    assert listed["total"] == 2
    assert [group["group"] for group in listed["groups"]] == ["capitals:1/1"]
    assert [each["reward"] for each in listed["groups"][0]["trajectories"]] == [1.0, 0.0]


def test_groups_whose_positions_have_gaps_are_listed(call, lab):
    told = [{"role": "user", "content": "a word?"}], [{"role": "assistant", "content": "yes"}]
    prompt, items = [UserMessage(**told[0][0])], [AssistantMessage(**told[1][0])]
    with lab.draft() as draft:
        draft.add(Recorded("a test", "sparse", position, prompt, items) for position in (2, 5, 9))
        draft.publish()
    listed = call("list_groups", collection="sparse", limit=2, offset=1)
    assert [group["group"] for group in listed["groups"]] == ["sparse:1/5", "sparse:1/9"]
    assert listed["total"] == 3


def test_what_comparisons_sampled_is_listed_and_searched_only_where_it_is_asked_for(call, lab):
    compared = lab_with(lab, ["a capital"], name="compare.capitals.lab.practice.step0")
    names = [each["collection"] for each in call("list_groups", comparisons=True)["collections"]]
    assert names == [f"{compared.name}:1", "capitals:1"]
    assert call("list_groups")["total"] == 1
    searched = call("search_trajectories", limit=100)
    assert {hit["metadata"]["collection"] for hit in searched["hits"]} == {"capitals"}
    assert any(note.startswith("1 trajectory of comparisons left out") for note in searched["notes"])
    (hit,) = call("search_trajectories", where={"collection": compared.name})["hits"]
    assert hit["id"] == f"{compared.name}:1/0/0"


def test_an_added_conversation_is_a_generation_of_its_own_or_joins_a_group(call, lab):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    first = call("add_trajectory", into="capitals", messages=messages, model="me")
    assert first == {"id": "capitals:2/0/0", "group": "capitals:2/0", "reward": None}
    second = call("add_trajectory", into=first["group"], messages=messages, reward=0.5, note="good")
    assert second["id"] == "capitals:2/0/1"
    (group,) = lab.groups(lab.find("capitals"))
    assert [each.reward for each in group.trajectories] == [None, 0.5]
    assert [each.model for each in group.trajectories] == ["me", "a notebook"]


def test_conversations_that_are_added_at_once_all_get_a_place(call):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    group = call("add_trajectory", into="many", messages=messages)["group"]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(call("add_trajectory", into=group, messages=messages)["id"]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{group}/{place}" for place in range(1, 9)]


@pytest.mark.parametrize(
    "said",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "king", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": []},
        {"messages": "a"},
        {"into": "no name!"},
        {"into": "capitals/0"},
        {"reward": "high"},
        {"surprise": 1},
    ],
)
def test_a_conversation_that_is_none_is_refused_and_nothing_is_kept(call, lab, said):
    good = {"into": "new", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    call("add_trajectory", True, **{**good, **said})
    assert list(lab.sizes()) == ["capitals"]


def test_a_reward_is_set_by_the_caller_logged_and_can_be_taken_back(call, lab):
    told = call("set_reward", id="capitals/0/1", reward=0.25, note="half right")
    assert told == {"id": "capitals/0/1", "reward": 0.25, "before": 0.0}
    edit = lab.rewards.history_of(lab.find("capitals"))[0]
    assert (edit.source, edit.who, edit.note) == ("tool", "a notebook", "half right")
    lab.rewards.undo(lab.find("capitals"))
    assert call("get_trajectory", id="capitals/0/1")["reward"] == 0.0


def test_a_reward_of_a_caller_gives_way_to_a_function_and_one_by_hand_stays(call, lab, visitor):
    call("set_reward", id="capitals/0/1", reward=100.0)
    call("add_trajectory", into="capitals:1/1", messages=ITALY, reward=100.0)
    assert call("get_trajectory", id="capitals/0/1")["source"] == "tool"
    assert call("get_trajectory", id="capitals/1/2")["source"] == "tool"
    lab.rewards.give([Score(lab.groups(lab.find("capitals"))[1].trajectories[0], 7.0)], "hand")
    notebook = Session(Settings(home=visitor.home))
    notebook.reward("capitals", lambda trajectory, answer, messages, row: 0.5)
    notebook.close()
    rewards = [[t.reward for t in group.trajectories] for group in lab.groups(lab.find("capitals"))]
    assert rewards == [[0.5, 0.5], [7.0, 0.5, 0.5]]


def test_a_tool_does_not_replace_a_reward_that_was_given_by_hand(call, lab):
    trajectory = lab.groups(lab.find("capitals"))[0].trajectories[1]
    lab.rewards.give([Score(trajectory, 7.0)], "hand")
    refusal = call("set_reward", True, id="capitals/0/1", reward=100.0)
    assert "the reward of capitals/0/1 was given by hand, and a tool cannot replace it" in refusal
    kept = call("get_trajectory", id="capitals/0/1")
    assert (kept["reward"], kept["source"]) == (7.0, "hand")
    assert [edit.source for edit in lab.rewards.history_of(lab.find("capitals"))] == ["hand"]
    lab.rewards.undo(lab.find("capitals"))
    assert call("set_reward", id="capitals/0/1", reward=0.25)["before"] == 0.0
    assert call("set_reward", id="capitals/0/1", reward=0.25)["before"] == 0.25


@pytest.mark.parametrize("number", ["9" * 19, "9" * 20, "9" * 5000])
def test_a_number_that_no_generation_can_have_is_no_collection(call, number):
    for tool, said in (
        ("list_groups", {"collection": f"capitals:{number}"}),
        ("get_trajectory", {"id": f"capitals:{number}/0/0"}),
        ("get_trajectory", {"id": f"capitals/{number}/0"}),
        ("set_reward", {"id": f"capitals:{number}/0/0", "reward": 1}),
    ):
        assert call(tool, True, **said).startswith("there is no ")


@pytest.mark.parametrize("reward", ["good", None, [1]])
def test_a_reward_is_a_number(call, reward):
    assert "reward" in call("set_reward", True, id="capitals/0/1", reward=reward)


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_the_schemas_are_schemas(name):
    import jsonschema  # for two seconds, of each worker if it stood above

    jsonschema.Draft202012Validator.check_schema(dict(TOOLS[name].schema))


def test_the_examples_of_the_search_tool_fit_its_schema():
    import jsonschema

    tool = TOOLS["search_trajectories"]
    decoder, rest, found = json.JSONDecoder(), tool.description.partition("Examples: ")[2], []
    while rest.startswith("{"):
        example, end = decoder.raw_decode(rest)
        found.append(example)
        rest = rest[end:].lstrip("; ")
    assert len(found) == 2
    for example in found:
        jsonschema.validate(example, dict(tool.schema))
