"""Two notebooks of one lab that sample under the same name: each goes on with its own generation."""

import json

import pytest

from rolloutlab.errors import NotFoundError
from rolloutlab.session import Session

ELSEWHERE = (
    "letters is letters:1 in this notebook; letters:2 was made elsewhere since"
    " -> letters:2, or letters:latest to go on with it as letters"
)


def sample(session, name: str = "letters", n: int = 2):
    return session.chat(name, "Hello", n=n, max_tokens=2, seed=1)


def length(answer: str) -> float:
    return float(len(answer))


def place(trajectory) -> float:
    return float(trajectory.name[-1])


@pytest.fixture
def other(session):
    """The session of a second notebook."""
    other = Session(session.settings, http=session._connector.http)
    yield other
    other.close()


@pytest.fixture
def both(session, other, capsys):
    """This notebook has sampled `letters`, and the other one has done so since."""
    sample(session)
    sample(other, n=3)
    capsys.readouterr()
    return session


def generation(name: str) -> str:
    return name.partition("/")[0]


def reward(session, _tmp_path):
    session.reward("letters", place)
    scored = [len(session.collection(f"letters:{number}").reward_history()) for number in (1, 2)]
    return "letters:1" if scored == [2, 0] else scored


def rewards(session, _tmp_path):
    return generation(session.rewards("letters").to_frame().index[0])


def rewards_of_a_pattern(session, _tmp_path):
    return generation(session.rewards("let*").to_frame().index[0])


def edited_rewards(session, _tmp_path):
    frame = session.collection("letters").to_frame()
    frame["reward"] = 1.0
    session.collection("letters").update_rewards(frame)
    return generation(frame.index[0])


def group(session, _tmp_path):
    return session.collection("letters/0").label


def ranked(session, _tmp_path):
    group = session.collection("letters/0")
    group.rank([1, 0])
    return group.label


def train(session, _tmp_path):
    session.reward("letters:1", place)
    session.reward("letters:2", place)
    session.train("letters", wait=False, say=lambda _: None).wait(progress=False)
    return session.store.jobs.newest_first()[0].collections[0]


def checked(session, _tmp_path):
    session.reward("letters:1", place)
    return "letters:1" if "2 of 2" in repr(session.check("letters")) else repr(session.check("letters"))


def compare(session, _tmp_path):
    sides = session.compare("letters", lambda answer: 0.5, before=0, after=0)
    return (
        f"letters:{1 if len(sides.pairs) and len(session.collection('compare.letters.lab.practice.step0')) == 2 else 2}"
    )


def export(session, tmp_path):
    session.files.export("letters", tmp_path / "out.jsonl")
    return f"letters:{json.loads((tmp_path / 'out.jsonl').read_text().splitlines()[0])['generation']}"


def branch(session, _tmp_path):
    with pytest.raises(NotFoundError):
        session.branch("letters/0/2")  # which only the other's generation has
    session.branch("letters/0/1")
    return "letters:1"


def undo(session, _tmp_path):
    session.reward("letters:1", place)
    session.reward("letters:2", place)
    session.collection("letters").undo_rewards()
    return "letters:1" if session.collection("letters:1").mean_reward is None else "letters:2"


def resume(session, _tmp_path):
    return session.resume("letters").label


def continued(session, _tmp_path):
    return f"letters:{1 if len(session.continue_chat('letters', 'Go on')) == 2 else 2}"


def logprobs(session, _tmp_path):
    return f"letters:{1 if len(session.files.logprobs('letters', say=lambda _: None)) == 2 else 2}"


VERBS = [
    reward, rewards, rewards_of_a_pattern, edited_rewards, group, ranked, train, checked, compare, export, branch, undo,
    resume, continued, logprobs,
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_bare_name_is_the_generation_that_this_notebook_sampled_and_a_line_says_so(both, verb, tmp_path, capsys):
    assert verb(both, tmp_path) == "letters:1"
    assert ELSEWHERE in capsys.readouterr().out.splitlines()


def test_the_other_notebook_goes_on_with_its_own_and_without_a_line(both, other, capsys):
    assert other.collection("letters").label == "letters:2"
    assert len(other.reward("letters", place)) == 3
    assert "elsewhere" not in capsys.readouterr().out


def test_a_notebook_that_only_looked_goes_on_with_what_it_saw(session, other, capsys):
    sample(other)
    session.rewards("letters")
    sample(other)
    capsys.readouterr()
    assert session.reward("letters", place).label == "letters:1"
    assert ELSEWHERE in capsys.readouterr().out


def test_where_bare_names_differ_every_generation_is_shown_with_its_number(both):
    assert list(both.collections().index) == ["letters:2", "letters:1"]
    assert both.collection("letters").trajectories[0].name == "letters:1/0/0"


def test_a_number_names_another_generation_and_leaves_the_bare_name(both):
    assert len(both.collection("letters:2")) == 3
    assert both.collection("letters").label == "letters:1"


def test_the_latest_is_the_bare_name_from_then_on(both, capsys):
    assert both.collection("letters:latest/0").label == "letters:2"
    capsys.readouterr()
    assert both.collection("letters").label == "letters:2"
    assert capsys.readouterr().out == ""


def test_sampling_moves_the_bare_name(both, capsys):
    assert sample(both).label == "letters:3"
    assert both.collection("letters").label == "letters:3"
    assert "elsewhere" not in capsys.readouterr().out


def test_an_import_and_a_copied_search_move_the_bare_name(both, tmp_path):
    both.files.export("letters:1", tmp_path / "in.jsonl")
    assert both.files.import_(tmp_path / "in.jsonl", "letters").label == "letters:3"
    assert both.collection("letters").label == "letters:3"
    both.search(where="collection == 'letters' and generation == 1", into="letters")
    assert both.collection("letters").label == "letters:4"


def test_a_search_says_which_hits_are_of_another_notebooks_generation(both):
    notes = both.search(where="collection == 'letters'").notes
    assert (
        "3 of the hits are of letters:2, which was made elsewhere; letters is letters:1 in this notebook"
        " -> generation == 1 in --where"
    ) in notes
    assert not any(
        "elsewhere" in note for note in both.search(where="collection == 'letters' and generation == 1").notes
    )


def test_a_generation_that_the_other_notebook_deleted_is_not_replaced_by_its_own(both, other):
    other.delete("letters:1", say=lambda _: None)
    with pytest.raises(NotFoundError, match="letters:1 was deleted") as gone:
        both.reward("letters", place)
    assert gone.value.hint == "%collections --restore letters:1"


def test_a_search_finds_the_others_generation_where_the_other_notebook_deleted_this_ones(both, other):
    other.delete("letters:1", say=lambda _: None)
    assert len(both.search(where="collection == 'letters'")) == 3


def test_a_generation_that_this_notebook_deleted_leaves_the_name_to_the_next_and_says_so(both, capsys):
    both.delete("letters:1")
    assert capsys.readouterr().out.splitlines()[1] == "letters is letters:2 from now on"
    assert both.collection("letters").label == "letters:2"
    both.restore("letters:1")
    assert both.collection("letters").label == "letters:2"


def test_a_bare_name_follows_a_rename_and_says_where_the_other_notebook_renamed(both, other):
    both.rename("letters", "glyphs", say=lambda _: None)
    assert both.collection("glyphs").label == "glyphs:1"
    with pytest.raises(NotFoundError, match="letters was renamed to glyphs"):
        other.collection("letters")


def test_the_name_outlives_a_closed_session(both, capsys):
    both.close()
    assert both.collection("letters").label == "letters:1"
    assert ELSEWHERE in capsys.readouterr().out
