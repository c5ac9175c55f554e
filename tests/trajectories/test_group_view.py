"""Groups as a browser asks for them: read one at a time, ranked and scored, in words that cannot act."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rolloutlab.api.wire.chat import Choice, SystemMessage, ToolMessage, UserMessage
from rolloutlab.api.wire.trajectories import ScoredHistories
from rolloutlab.errors import NotFoundError, RewardError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, NewGroup, Score
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.group_view import GroupView
from rolloutlab.trajectories.rewards_view import RewardsView
from tests.labs import lab_with

Groups = Callable[..., list[Group]]


def _choice(answer: str | None = "Paris", **overrides: Any) -> Choice:
    """A completion with a token per word, and one that ends it."""
    words = (answer or "call").split(" ")
    texts = [words[0], *(f" {word}" for word in words[1:]), "<end>"]
    content = [{"token": text, "logprob": -0.5, "top_logprobs": []} for text in texts]
    message = {"role": "assistant", "content": answer}
    record = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
    return Choice.model_validate(record | overrides)


@pytest.fixture(scope="session")
def choice() -> Callable[..., Choice]:
    """Makes a sampled completion."""
    return _choice


@pytest.fixture
def groups(lab: Lab) -> Callable[..., list[Group]]:
    """Puts completions into groups of a new collection: a list of answers, or of items, per group."""

    def put(*answers: list[Any], name: str = "capitals", **extra: Any) -> list[Group]:
        prompt = [SystemMessage(role="system", content="Be brief."), UserMessage(role="user", content="Capital?")]
        prompts = [NewGroup(prompt, {"answer": "Paris"}) for _ in answers]
        options = {"name": name, "prompts": prompts, "step": 3, "sampling": {"temperature": 1.0}, "extra": extra}
        return lab.groups(lab_with(lab, *answers, **options, make=_choice))

    return put


def view(lab: Lab, position: int | None = None, **more: Any) -> GroupView:
    return GroupView(lab, lab.find("capitals").id, position, **more)


def asked(of: GroupView, call: str, **args: Any) -> Any:
    """The answer that a browser gets, once it has been JSON."""
    answer = json.loads(json.dumps(of.answer({"id": "1", "call": call, "args": args}), allow_nan=False))
    if "error" in answer:
        raise AssertionError(answer["error"]["message"])
    return answer["result"]


def refused(of: GroupView, call: str, **args: Any) -> tuple[str, str | None]:
    error = of.answer({"id": "1", "call": call, "args": args})["error"]
    return error["message"], error["hint"]


def rewards(lab: Lab) -> list[float | None]:
    return [outline.reward for outline in lab.outlines.of(lab.find("capitals"))]


def column(standing: dict[str, Any], name: str) -> list[Any]:
    return [each[name] for each in standing["standing"]]


def test_the_first_group_is_shown_with_its_whole_prompt_once(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon"], ["Lima"])
    shown = view(lab).state()["shown"]
    assert (shown["at"], shown["of"], shown["name"]) == (0, 2, "capitals")
    group = shown["group"]
    assert [(each["role"], each["content"]["text"]) for each in group["prompt"]] == [
        ("system", "Be brief."),
        ("user", "Capital?"),
    ]
    assert group["row"] == {"answer": "Paris"}
    assert [[turn["content"]["text"] for turn in member["turns"]] for member in group["members"]] == [
        ["Paris"],
        ["Lyon"],
    ]
    assert [member["tokens"] for member in group["members"]] == [2, 2]


def test_another_group_is_found_by_its_place_and_by_its_name(lab: Lab, groups: Groups) -> None:
    groups(["Paris"], ["Lima"], ["Quito"])
    assert asked(view(lab), "group", at=2)["group"]["name"] == "capitals/2"
    assert asked(view(lab), "group", at=99)["at"] == 2
    assert asked(view(lab), "find", position=1)["at"] == 1
    assert refused(view(lab), "find", position=7) == ("there is no group capitals/7", "0 to 2")


def test_a_view_of_one_group_shows_no_other(lab: Lab, groups: Groups) -> None:
    groups(["Paris"], ["Lima"])
    shown = view(lab, 1).state()["shown"]
    assert (shown["of"], shown["group"]["name"]) == (1, "capitals/1")


def test_only_the_group_that_is_shown_is_read(lab: Lab, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(["Paris"], ["Lima"], ["Quito"])
    read: list[Any] = []
    whole = lab.groups
    monkeypatch.setattr(lab, "groups", lambda stored, position: read.append(position) or whole(stored, position))
    shown = view(lab)
    shown.state()
    asked(shown, "find", position=2)
    asked(shown, "give", position=2, seats=[0], reward=1)
    asked(shown, "standing", position=2)
    assert read == [0, 2]


def test_what_arrives_in_a_group_is_shown_when_it_is_asked_for_again(lab: Lab, groups: Groups, choice: Any) -> None:
    (group,) = groups(["Paris"])
    shown = view(lab)
    shown.state()
    lab.put(group, [Arrival(1, [choice("Lyon")])], model="m", step=None, sampling={})
    assert len(asked(shown, "group", at=0)["group"]["members"]) == 2


def test_a_page_hears_of_the_reward_of_what_arrived_after_it(
    lab: Lab, groups: Groups, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = groups(["Paris"])
    shown, pushed = view(lab), list[str]()
    monkeypatch.setattr(shown, "push", pushed.append)
    shown.state()
    lab.put(group, [Arrival(1, [choice("Lyon")])], model="m", step=None, sampling={})
    asked(shown, "group", at=0)
    RewardsView(lab, [lab.find("capitals")]).set("capitals/0/1", 1)
    assert pushed == ["changed"]


def test_a_collection_without_groups_and_one_that_was_deleted_say_so(lab: Lab, groups: Groups) -> None:
    groups()
    shown = view(lab)
    assert shown.state()["shown"] == {"at": 0, "of": 0, "name": "capitals", "group": None}
    lab.lifecycle.delete("capitals")
    assert shown.first_state() == {
        "refused": {"message": "capitals:1 was deleted", "hint": "%collections --restore capitals:1"}
    }


def test_ranks_become_rewards_by_hand_in_one_change_that_is_undone_at_once(lab: Lab, groups: Groups) -> None:
    (group,) = groups(["Paris", "Lyon", "Nice", "Lille"])
    lab.rewards.give([Score(t, 0.25, {"right": 0.25}) for t in group.trajectories], "function")
    shown = view(lab)
    response = asked(shown, "rank", position=0, ranking=[[2], [0, 3]])
    assert column(response, "reward") == [0.25, 0.25, 1.0, 0.25]
    assert column(response, "source") == ["hand", "function", "hand", "hand"]
    assert response["message"] == "given by hand: 3 rewards in capitals/0"
    assert {edit.change for t in group.trajectories for edit in lab.rewards.history(t)} == {1, 2}
    back = asked(shown, "undo", position=0)
    assert column(back, "reward") == [0.25] * 4
    assert column(back, "components") == [{"right": 0.25}] * 4
    assert back["message"] == "taken back: 3 rewards in capitals/0"


def test_advantages_are_those_of_the_frame_of_the_group(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon the second", "Nice", "Lille"], ["Lima"])
    response = asked(view(lab), "rank", position=0, ranking=[0, [1, 2]])
    frame = Collection(lab, lab.find("capitals"), 0).to_frame()
    assert column(response, "advantage")[:3] == frame["advantage"].tolist()[:3]
    assert column(response, "why") == [None, None, None, ["no reward", "no reward yet"]]
    response = asked(view(lab), "rank", position=0, ranking=[[0, 1, 2]])
    assert [why[0] for why in column(response, "why")] == ["equal rewards"] * 3 + ["no reward"]


def test_one_reward_is_given_by_typing_it(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon"])
    response = asked(view(lab), "give", position=0, seats=[1], reward=-2.5)
    assert (column(response, "reward"), column(response, "source")) == ([None, -2.5], [None, "hand"])
    assert asked(view(lab), "give", position=0, seats=[1], reward=-2.5)["message"] == "every reward is as it was"


def test_a_typed_reward_is_read_as_the_rewards_view_reads_it(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon"])
    shown, table = view(lab), RewardsView(lab, [lab.find("capitals")])
    response = asked(shown, "give", position=0, seats=[1], reward=" 1e-1 ")
    assert column(response, "reward") == [None, 0.1]
    for typed in ("0x10", "1_0", "much", "0,5", "nan", "1e999", ""):
        with pytest.raises(RewardError) as error:
            table.set("capitals/0/1", typed)
        assert refused(shown, "give", position=0, seats=[1], reward=typed) == (str(error.value), error.value.hint)
    assert rewards(lab) == [None, 0.1]


def test_only_what_says_the_same_is_one_card(lab: Lab, groups: Groups) -> None:
    """A card gives its reward to all of its completions: one that is not read on it must not be among them."""
    said: list[dict[str, Any]] = [{"refusal": "no"}, {"refusal": "never"}, {"refusal": "no"}]
    said += [{"function_call": {"name": "f", "arguments": arguments}} for arguments in ("1", "2")]
    groups([_choice(None, message={"role": "assistant", "content": None, **each}) for each in said])
    members = view(lab).state()["shown"]["group"]["members"]
    assert [member["same"] for member in members] == [0, 1, 0, 3, 4]


@pytest.mark.parametrize("source", ["a function", "a judge", "an environment"])
def test_undo_leaves_what_was_not_given_by_hand(lab: Lab, groups: Groups, source: str) -> None:
    (group,) = groups(["Paris"])
    shown = view(lab)
    nothing = "nothing by hand to undo here: nothing is left"
    assert refused(shown, "undo", position=0) == (nothing, "%rewards capitals --history")
    lab.rewards.give([Score(group.trajectories[0], 1.0)], source.partition(" ")[2])
    message, hint = refused(shown, "undo", position=0)
    assert message.endswith(f"the newest change was given by {source}")
    assert hint == "%rewards capitals --undo"
    assert rewards(lab) == [1.0]


def test_a_button_takes_back_only_the_change_that_it_names(lab: Lab, groups: Groups) -> None:
    (group,) = groups(["Paris", "Lyon"])
    shown = view(lab)
    assert shown.state()["shown"]["group"]["undo"] == {"change": 0, "what": ""}
    mine = asked(shown, "give", position=0, seats=[0], reward=1)["undo"]
    assert mine == {"change": 1, "what": "1 reward set to 1"}
    lab.rewards.give([Score(t, 0.5) for t in group.trajectories], "hand")  # as another kernel does
    message, hint = refused(shown, "undo", position=0, seen=mine["change"])
    assert message == "another change is the newest by now: 2 rewards set to 0.5"
    assert hint == "the button names it: press it again, or leave it"
    assert rewards(lab) == [0.5, 0.5]
    named = asked(shown, "standing", position=0)["undo"]
    assert named == {"change": 2, "what": "2 rewards set to 0.5"}
    assert asked(shown, "undo", position=0, seen=named["change"])["undo"] == mine
    assert rewards(lab) == [1.0, None]


def test_a_button_that_names_nothing_takes_back_nothing(lab: Lab, groups: Groups) -> None:
    (group,) = groups(["Paris"])
    shown = view(lab)
    lab.rewards.give([Score(group.trajectories[0], 1.0)], "hand")
    assert refused(shown, "undo", position=0, seen=0)[0].startswith("another change is the newest by now")
    assert rewards(lab) == [1.0]


def test_undo_leaves_what_was_given_in_another_group(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon"], ["Lima"])
    shown = view(lab)
    asked(shown, "rank", position=0, ranking=[[1], [0]])
    message, _ = refused(shown, "undo", position=1)
    assert message == "nothing by hand to undo here: the newest change was in group 0"
    assert "taken back: 2 rewards" in asked(shown, "undo", position=0)["message"]


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("group", {"at": -1}),
        ("group", {"at": "0"}),
        ("find", {"position": None}),
        ("text", {"position": 0, "seat": 9, "number": 0, "start": 0}),
        ("text", {"position": 0, "seat": 0, "number": 9, "start": 0}),
        ("text", {"position": 0, "seat": 0, "number": 0, "start": -1}),
        ("tokens", {"position": 0, "seat": True, "start": 0}),
        ("give", {"position": 0, "seats": [0], "reward": "0x10"}),
        ("give", {"position": 0, "seats": [0], "reward": ""}),
        ("give", {"position": 0, "seats": [0], "reward": float("nan")}),
        ("give", {"position": 5, "seats": [0], "reward": 1}),
        ("rank", {"position": 0, "ranking": [[0], [0]]}),
        ("rank", {"position": 0, "ranking": "all"}),
        ("gap", {"position": 0, "seat": 0}),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words_and_changes_nothing(
    lab: Lab, groups: Groups, capsys: pytest.CaptureFixture[str], call: str, args: dict[str, Any]
) -> None:
    groups(["Paris"])
    assert refused(view(lab), call, **args)[0]
    assert "Traceback" not in capsys.readouterr().err
    assert rewards(lab) == [None]


def test_a_long_text_comes_in_pieces_that_make_it_whole(lab: Lab, groups: Groups) -> None:
    long = "".join(f"line-{i}-of-a-long-text\r\n" for i in range(12_000))  # which is one token
    groups([long])
    text = asked(view(lab), "group", at=0)["group"]["members"][0]["turns"][0]["content"]
    assert (len(text["text"]) <= 20_000, text["size"]) == (True, len(long))
    parts, end = [text["text"]], text["end"]
    while end < text["size"]:
        more = asked(view(lab), "text", position=0, seat=0, number=text["number"], start=end)
        assert len(more["text"]) <= 200_001
        parts, end = [*parts, more["text"]], more["end"]
    assert "".join(parts) == long.replace("\r\n", "\n")


def test_every_text_of_a_conversation_is_found_under_its_number(lab: Lab, groups: Groups, choice: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "a" * 30_000}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    items = [choice(None, message=calling), ToolMessage(role="tool", content="b" * 30_000, tool_call_id="1")]
    tools = [{"type": "function", "function": {"name": "look", "description": "c" * 30_000}}]
    groups([[*items, choice("d" * 30_000)]], tools=tools, logs=["e" * 30_000])
    group = asked(view(lab), "group", at=0)["group"]
    (member,) = group["members"]
    first, last = member["turns"]
    texts = [first["calls"][0]["arguments"], first["calls"][0]["result"], last["content"], *member["logs"]]
    for seat, text, letter in [
        *((0, text, "abde"[i]) for i, text in enumerate(texts)),
        (None, group["tools"][0]["definition"], "c"),
    ]:
        rest = asked(view(lab), "text", position=0, seat=seat, number=text["number"], start=20_000)
        assert (rest["text"][:5], text["size"] >= 30_000) == (letter * 5, True)


def test_hostile_text_is_written_out_wherever_it_is(lab: Lab, groups: Groups, choice: Any) -> None:
    bad = "\x1b[2J\u202e<script>"
    call = {"id": "1", "type": "function", "function": {"name": bad, "arguments": bad}}
    calling = choice(bad, message={"role": "assistant", "content": bad, "tool_calls": [call], "reasoning_content": bad})
    groups([[calling, ToolMessage(role="tool", content=bad, tool_call_id="1")]], logs=[bad])
    shown = view(lab)
    everything = json.dumps([shown.state(), asked(shown, "tokens", position=0, seat=0, start=0)], ensure_ascii=False)
    assert "\x1b" not in everything
    assert "\\u001b" not in everything
    assert "\u202e" not in everything
    assert everything.count("␛[2J⟨202e⟩<script>") >= 6


def test_the_gap_to_the_newest_checkpoint_is_the_new_logprob_minus_the_old(lab: Lab, groups: Groups) -> None:
    groups(["Paris is it"])
    wanted: list[Any] = []

    def newest(model: str, histories: Any) -> ScoredHistories:
        wanted.append((model, [len(history.messages_and_choices) for history in histories]))
        now = [{"token": "x", "logprob": -0.5 + i / 4, "top_logprobs": []} for i in range(4)]
        data = [{"turns": [{"index": 2, "logprobs": {"content": now}}]}]
        return ScoredHistories.model_validate({"object": "list", "model": "lab/practice@9", "data": data})

    response = asked(view(lab, ask_logprobs=newest), "gap", position=0, seat=0)
    assert response == {"model": "lab/practice@9", "turns": [[0.0, 0.25, 0.5, 0.75]]}
    assert wanted == [("lab/practice", [3])]


def test_a_collection_ranks_its_one_group(lab: Lab, groups: Groups) -> None:
    groups(["Paris", "Lyon"], ["Lima"])
    edits = Collection(lab, lab.find("capitals"), 0).rank(["capitals/0/1", 0])
    assert [(edit.trajectory, edit.new, edit.source) for edit in edits] == [
        ("capitals/0/1", 1.0, "hand"),
        ("capitals/0/0", 0.0, "hand"),
    ]
    with pytest.raises(Exception, match="one is ranked at a time"):
        Collection(lab, lab.find("capitals")).rank([0])


def test_a_group_that_is_not_there_is_refused(lab: Lab, groups: Groups) -> None:
    groups(["Paris"])
    with pytest.raises(NotFoundError, match="capitals/4"):
        view(lab).reward_state(4)
