"""%search in the text of reasoning, on conversations that other tools wrote."""

import json

import pytest

from rolloutlab.errors import InputError
from rolloutlab.magics.completion import Matcher
from rolloutlab.search import F

TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CONVERSATIONS = [
    [  # 0: every turn reasons, one of them before a tool call
        {"role": "user", "content": "Should I carry it?"},
        {
            "role": "assistant",
            "reasoning_content": "First:\n\ncarry the one 🤔",
            "content": "",
            "tool_calls": [TOOL_CALL],
        },
        {"role": "tool", "tool_call_id": "1", "content": "borrow"},
        {"role": "assistant", "content": "<think>\nthen add\n</think>\n\n12"},
    ],
    [{"role": "user", "content": "carry?"}, {"role": "assistant", "content": "You carry nothing."}],
    [{"role": "user", "content": "4?"}, {"role": "assistant", "reasoning": "assistant: carried", "content": "4"}],
    [{"role": "user", "content": "4?"}, {"role": "assistant", "reasoning_content": "", "content": "<think></think>4"}],
    [{"role": "user", "content": "<think>carry</think>"}, {"role": "assistant", "content": "<think>never ends"}],
    [{"role": "user", "content": "4?"}, {"role": "assistant", "reasoning": "\u0000carry\u0000", "content": "4"}],
]


@pytest.fixture
def thoughtful(notebook, tmp_path):
    """A collection of conversations from elsewhere, whose rewards are their numbers."""
    file = tmp_path / "theirs.jsonl"
    file.write_text(
        "".join(json.dumps({"messages_and_choices": each, "reward": i}) + "\n" for i, each in enumerate(CONVERSATIONS))
    )
    notebook.run(f"%import {file} theirs")
    return notebook


def numbers(result):
    """Which of the conversations are hits."""
    return sorted(int(hit.metadata["reward"]) for hit in result)


@pytest.mark.parametrize(
    ("where", "hits"),
    [
        ("'carry' in reasoning_text", [0, 5]),
        ("'carry' in reasoning", [0, 5]),
        ("'carry' in document", [0, 1, 4, 5]),
        ("'carry' not in reasoning_text", [1, 2, 3, 4]),
        ("contains(reasoning, 'one 🤔')", [0]),
        ("'one 🤔\\n\\nthen' in reasoning_text", [0]),
        ("'borrow' in reasoning_text or '12' in reasoning_text", []),
        ("'ends' in reasoning_text", [4]),
        ("'\\x00carry\\x00' in reasoning_text", [5]),
        ("reasoning_text.regex('carr(y|ied)')", [0, 2, 5]),
        ("reasoning.regex('(?s)^First.*add$')", [0]),
        ("not_regex(reasoning, 'carr(y|ied)')", [1, 3, 4]),
        ("reasoning_text == 'never ends'", [4]),
        ("reasoning > 0 and 'carry' not in reasoning", [2, 4]),
        ("reasoning > 20", [0]),
        ("reasoning == 18", [2]),
        ("reasoning_text > 3", []),
    ],
)
def test_a_condition_on_the_text_of_reasoning_reads_that_alone(thoughtful, where, hits):
    assert numbers(thoughtful.lab.search(where=where, k=0)) == hits


def test_the_magic_and_python_and_json_find_the_same(thoughtful):
    typed = thoughtful.run("%search --where \"'carry' in reasoning_text\"")
    python = thoughtful.lab.search(where=F.reasoning_text.contains("carry"))
    written = thoughtful.run('%%search\n{"where": {"reasoning": {"$contains": "carry"}}}')
    assert numbers(typed) == numbers(python) == numbers(written) == [0, 5]
    assert "the text of reasoning contains 'carry'" in written.words()


def test_the_text_is_selected_by_its_name_and_is_no_metadata_otherwise(thoughtful):
    frame = thoughtful.run("%search -k 0 --select reward,reasoning,reasoning_text").to_frame()
    texts = frame.set_index("reward")["reasoning_text"]
    assert texts[0] == "First:\n\ncarry the one 🤔\n\nthen add"
    assert texts.isna()[1]
    assert frame.set_index("reasoning_text")["reasoning"]["assistant: carried"] == len("assistant: carried")
    assert "reasoning_text" not in thoughtful.run("%search -k 0").to_frame().columns
    assert all("reasoning_text" not in hit.metadata for hit in thoughtful.run("%search carry"))


def test_a_table_shows_the_passage_and_that_it_is_cut(notebook, tmp_path):
    long = f"{'wait ' * 200}carry {'so ' * 20_000}"
    message = {"role": "assistant", "reasoning_content": long, "content": "12"}
    conversation = {"messages_and_choices": [{"role": "user", "content": "5 + 7?"}, message], "reward": 1.0}
    (tmp_path / "long.jsonl").write_text(json.dumps(conversation))
    notebook.run(f"%import {tmp_path / 'long.jsonl'} long")
    result = notebook.run("%search --where \"'carry' in reasoning_text\" --select reasoning_text")
    assert "reasoning_text … wait" in repr(result)
    assert "carry so" in repr(result)
    assert len(repr(result)) < 1000
    assert result._repr_html_().count("<mark>carry</mark>") == 2  # of the field and of the conversation
    assert result[0].metadata["reasoning_text"] == long
    assert list(result.to_frame()["reasoning_text"]) == [long]


def test_a_condition_alone_makes_no_empty_column(thoughtful):
    assert "reasoning_text" not in thoughtful.run("%search --where \"'carry' in reasoning_text\"")._repr_html_()


def test_hits_are_grouped_and_ranked_beside_the_text(thoughtful):
    result = thoughtful.lab.search(where="'carry' in reasoning", rank="field('reward')", group_by="reasoning_text")
    assert numbers(result) == [0, 5]
    assert thoughtful.lab.search(rank="field('reasoning_text')").names == []


def test_a_name_that_is_nearly_right_is_corrected(thoughtful):
    with pytest.raises(InputError) as unknown:
        thoughtful.lab.search(where="'carry' in reasoning_texts")
    assert "reasoning_text" in unknown.value.hint


def test_tab_offers_the_field(thoughtful):
    thoughtful.run("%search carry")
    line = "%search --where \"'carry' in reason"
    offered = ["reasoning", "reasoning_text"]
    assert Matcher(thoughtful.shell).complete(line, 0, len(line)) == ("reason", offered)
