"""Our own files: written, read into an empty lab and written again they have the same bytes."""

import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.chat import AssistantMessage, Choice, ToolMessage, UserMessage
from rolloutlab.errors import InputError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded, Score
from rolloutlab.trajectories.files.exchange import ExportFilter, export, import_file

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}, "unheard": None}
EXTRA = {
    "tools": [TOOL],
    "additional_histories": [{"messages_and_choices": [{"role": "user", "content": "and?"}]}],
    "metrics": {"turns": 3, "done": True},
    "metadata": {"who": None},
    "logs": ["a\u2028b"],
    "initial_policy_version": 1,
    "of_another_tool": {"deep": [1.5, None, "é"]},
    "group": "a property with the name of a column",
}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
number = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | number | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
token = st.fixed_dictionaries(
    {"token": text, "logprob": number, "top_logprobs": st.just([])},
    optional={"token_id": st.integers(0, 10**6), "bytes": st.lists(st.integers(0, 255), max_size=3) | st.none()},
)
sampled = st.builds(
    lambda content, tokens: Choice.model_validate(
        {
            "finish_reason": "length",
            "index": 0,
            "message": {"role": "assistant", "content": content},
            "logprobs": {"content": tokens},
        }
    ),
    text,
    st.lists(token, max_size=3),
)
said = (
    sampled
    | st.builds(lambda t: UserMessage(role="user", content=t), text)
    | st.builds(lambda t: AssistantMessage(role="assistant", content=t), text)
    | st.builds(lambda t: ToolMessage(role="tool", content=t, tool_call_id="1"), text)
)
trajectory = st.fixed_dictionaries(
    {
        "items": st.lists(said, max_size=3),
        "model": text,
        "step": st.none() | st.integers(0, 99),
        "sampling": st.dictionaries(text, plain, max_size=2),
        "reward": st.none() | number,
        "components": st.dictionaries(text, number, max_size=2),
        "source": st.none() | st.sampled_from(["hand", "function"]),
        "extra": st.fixed_dictionaries({}, optional={"metadata": st.dictionaries(text, text), "x": plain}),
    }
)
group = st.tuples(
    st.lists(text, max_size=2), st.dictionaries(text, plain, max_size=2), st.lists(trajectory, min_size=1)
)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@settings(max_examples=25)
@given(groups=st.lists(group, min_size=1, max_size=3))
@pytest.mark.long
def test_whatever_a_collection_holds_has_the_same_bytes_after_a_trip_through_a_file(suffix, groups):
    with tempfile.TemporaryDirectory() as folder:
        first, second = (Lab(Path(folder) / name / "lab.db") for name in "ab")
        with first.draft() as draft:
            draft.add(
                Recorded("here", "c", i, [UserMessage(role="user", content=t) for t in prompt], row=row, **each)
                for i, (prompt, row, trajectories) in enumerate(groups)
                for each in trajectories
            )
            draft.publish()
        files = [Path(folder) / f"{name}.{suffix}" for name in "ab"]
        export(first, [first.find("c")], files[0], None, ExportFilter(), overwrite=False, written=lambda _: None)
        import_file(second, files[0], None, None, lambda _: None)
        export(second, [second.find("c")], files[1], None, ExportFilter(), overwrite=False, written=lambda _: None)
        for mine, theirs in zip(first.each_group(first.find("c")), second.each_group(second.find("c")), strict=True):
            assert (mine.prompt, mine.row) == (theirs.prompt, theirs.row)
            assert [replace(t, id=0) for t in mine.trajectories] == [replace(t, id=0) for t in theirs.trajectories]
        assert files[0].read_bytes() == files[1].read_bytes()
        first.close()
        second.close()


def test_everything_that_a_trajectory_has_comes_back(open_desk, recorded, tmp_path):
    one, two = open_desk(), open_desk()
    one.add(recorded(extra=EXTRA), recorded("Lyon"), recorded("Nice", group=3, position=5))
    (first, _), _ = (each.trajectories for each in one.groups())
    one.lab.rewards.give([Score(first, 0.1, {"right": 0.1})], "hand")
    one.write(tmp_path / "a.jsonl")
    assert two.read(tmp_path / "a.jsonl") == ["capitals:1"]
    kept = [[(t.name, replace(t, id=0)) for g in desk.groups() for t in g.trajectories] for desk in (one, two)]
    assert kept[0] == kept[1]
    assert kept[1][0][1].extra == EXTRA
    assert [name for name, _ in kept[1]] == ["capitals/0/0", "capitals/0/1", "capitals/3/5"]


def test_a_line_is_a_trajectory_of_the_specification(desk, recorded, tmp_path):
    extra = {name: value for name, value in EXTRA.items() if name != "group"}
    desk.add(recorded(reward=0.5, extra=extra))
    desk.write(tmp_path / "a.jsonl")
    line = json.loads((tmp_path / "a.jsonl").read_text())
    sent = wire.Trajectory.model_validate(line)
    assert [tool.function.name for tool in sent.tools] == ["add"]
    assert len(sent.histories()) == 2
    assert line["extra"] == {"of_another_tool": EXTRA["of_another_tool"]}


def test_a_trajectory_from_elsewhere_trains_as_it_was(desk, tmp_path):
    sent = {
        "messages_and_choices": [
            {"role": "user", "content": "2 + 2?"},
            {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "4"}},
        ],
        "reward": 1.0,
        "start_time": "2026-01-31T12:00:00Z",
        "vendor": {"x": 1},
        **{name: value for name, value in EXTRA.items() if name != "group"},
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(sent))
    desk.read(tmp_path / "a.jsonl", "sums")
    ((result,),) = (each.trajectories for each in desk.groups("sums"))
    trained = result.to_wire().to_wire()
    metadata = trained.pop("metadata")
    expected = wire.Trajectory.model_validate(sent).to_wire()
    assert expected.pop("metadata").items() <= metadata.items()
    assert trained == expected


def test_several_collections_and_generations_keep_their_names_and_numbers(open_desk, recorded, tmp_path):
    one, two = open_desk(), open_desk()
    for each in (recorded("a"), recorded("b"), recorded("c", collection="rivers")):
        one.add(each)
    one.write(tmp_path / "a.jsonl", "capitals", "rivers", "capitals:1")
    assert two.read(tmp_path / "a.jsonl") == ["capitals:2", "rivers:1", "capitals:1"]
    two.write(tmp_path / "b.jsonl", "capitals", "rivers", "capitals:1")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert two.read(tmp_path / "a.jsonl") == ["capitals:4", "rivers:2", "capitals:3"]


def test_a_file_of_several_collections_is_not_read_under_one_name(desk, recorded, tmp_path):
    desk.add(recorded(), recorded(collection="rivers"))
    desk.write(tmp_path / "a.jsonl", "capitals", "rivers")
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: another collection begins"):
        desk.read(tmp_path / "a.jsonl", "both")
    assert {each.name for each in desk.lab.collections()} == {"capitals", "rivers"}


def test_a_collection_can_be_read_under_another_name(desk, recorded, tmp_path):
    desk.add(recorded())
    desk.write(tmp_path / "a.jsonl.gz")
    assert desk.read(tmp_path / "a.jsonl.gz", "copy") == ["copy:1"]
    assert json.loads(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()))["collection"] == "capitals"


def test_lines_without_places_are_grouped_by_their_prompt(desk, tmp_path):
    lines = [
        {"messages_and_choices": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in (("x?", "1"), ("y?", "2"), ("x?", "3"))
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    desk.read(tmp_path / "a.jsonl", "sums")
    assert [[t.answer for t in group.trajectories] for group in desk.groups("sums")] == [["1", "3"], ["2"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"messages_and_choices": None}, "messages_and_choices: "),
        (
            {"messages_and_choices": [{"role": "user", "content": "a"}, {"role": "usr"}]},
            "messages_and_choices.1.role: ",
        ),
        ({"reward": "high"}, "reward: "),
        ({"group": -1}, "group: "),
        ({"step": 2**80}, "step: "),
        ({"components": {"right": "yes"}}, "components.right: "),
        ({"prompt": 3}, "prompt: 3 is more than"),
        ({"prompt": 9}, "prompt: 9 is more than"),
        ({"row": 7}, "row: "),
        ({"collection": "no name"}, "is not a valid collection name"),
        ({"position": 0}, "capitals/0/0 is there twice"),
        ({"row": {"country": "Peru"}}, "its prompt or row is not that of capitals/0"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_place_and_nothing_is_kept(open_desk, recorded, tmp_path, changes, said):
    one, two = open_desk(), open_desk()
    one.add(recorded(), recorded())
    one.write(tmp_path / "a.jsonl")
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(first)}\n\n{json.dumps(second | changes)}\n")
    with pytest.raises(InputError) as error:
        two.read(tmp_path / "a.jsonl")
    assert said in error.value.message
    assert "collection" in changes or error.value.message.startswith("a.jsonl, line 3: ")
    assert error.value.hint
    assert two.lab.collections() == []
    assert two.lab._database.read("SELECT count(*) FROM trajectories")[0][0] == 0


def test_a_number_that_no_float_holds_is_refused(desk, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"messages_and_choices": [], "row": {"x": 1e400}}')
    with pytest.raises(InputError, match="row: a number is larger"):
        desk.read(tmp_path / "a.jsonl", "sums")
