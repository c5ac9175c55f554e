"""Scoring as a user types it: several functions, weights, a judge, and what came before."""

import json
import re

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient

CHAT = "%%chat capitals -n 2 --over countries --max-tokens 4 --seed 1\nuser: Capital of {{country}}?"

FUNCTIONS = """
def length(trajectory, answer, messages, row):
    return len(answer)

def french(trajectory, answer, messages, row):
    return row["country"] == "France"

class metrics:
    also = staticmethod(french)
"""

KEPT = "1 reward given by hand kept -> --overwrite (overwrite=True) replaces them\n"


@pytest.fixture
def scored(notebook):
    """A notebook with a sampled collection and two reward functions."""
    notebook.run(CHAT)
    notebook.run(FUNCTIONS)
    return notebook


def by_hand(notebook, reward: float = 7.0) -> None:
    notebook.run(
        "collection = get_ipython().run_line_magic('group', 'capitals/0'); frame = collection.to_frame()\n"
        f"frame.iloc[0, frame.columns.get_loc('reward')] = {reward}; _ = collection.update_rewards(frame)"
    )


def test_functions_of_the_notebook_score_together_with_weights(scored):
    frame = scored.run("%%reward capitals --with length,french --weight length=0.5").to_frame()
    assert frame["french"].tolist() == [1, 1, 0, 0]
    assert frame["reward"].tolist() == (0.5 * frame["length"] + frame["french"]).tolist()


def test_a_cell_is_described_by_the_variables_that_it_names_and_by_no_others(scored):
    parts = []
    for change in ("limit = other = 1", "other = 2", "limit = 2"):
        scored.run(change)
        scored.run("%%reward capitals\nreturn len(answer) > limit")
        parts.append(scored.lab.store.scorings.history(scored.lab.store.find("capitals"))[0].options["parts"])
    assert parts[0] == parts[1] != parts[2]


def test_a_body_is_one_more_function(scored):
    cell = "%%reward capitals --with length,metrics.also --weight cell=10 --weight length=0\nreturn 1"
    frame = scored.run(cell).to_frame()
    assert frame["cell"].tolist() == [1, 1, 1, 1]
    assert frame["reward"].tolist() == [11, 11, 10, 10]
    assert list(frame.columns)[2:5] == ["length", "also", "cell"]


def test_a_dictionary_of_components_is_summed_and_that_is_said_with_what_to_type(scored, capsys):
    cell = "return {'right': 1, 'length': len(answer)}"
    scored.run(f"%%reward capitals\n{cell}")
    line = "the reward is right + length -> --weight length=0 leaves length out of the sum"
    assert capsys.readouterr().out.count(line) == 1
    frame = scored.run(f"%%reward capitals --weight length=0\n{cell}").to_frame()
    assert frame["reward"].tolist() == [1, 1, 1, 1]
    assert line not in capsys.readouterr().out
    scored.run("%%reward capitals\nreturn {'reward': 1, 'length': len(answer)}")
    assert "the reward is" not in capsys.readouterr().out


def test_scoring_again_keeps_what_was_given_by_hand_and_says_so(scored, capsys):
    by_hand(scored)
    frame = scored.run("%%reward capitals\nreturn 1").to_frame()
    assert frame["reward"].tolist() == [7, 1, 1, 1]
    assert capsys.readouterr().out.count(KEPT) == 1
    frame = scored.run("%%reward capitals --overwrite\nreturn 1").to_frame()
    assert frame["reward"].tolist() == [1, 1, 1, 1]
    assert "by hand" not in capsys.readouterr().out


def test_the_rewards_are_a_table_and_undo_takes_them_back_change_by_change(scored, capsys):
    scored.run("%%reward capitals\nreturn 1")
    by_hand(scored)
    assert scored.run("%rewards capitals -o table").to_frame()["reward"].tolist() == [7, 1, 1, 1]
    assert scored["table"].to_frame()["source"].tolist() == ["hand", "function", "function", "function"]
    assert scored.run("%rewards capitals --undo").to_frame()["reward"].tolist() == [1, 1, 1, 1]
    assert scored.run("%rewards capitals --undo").to_frame()["reward"].isna().all()
    assert [line for line in capsys.readouterr().out.splitlines() if "undone" in line] == [
        "change 2 is undone: 1 reward as before -> %rewards capitals --history",
        "change 1 is undone: 4 rewards as before, 4 of them unscored again -> %rewards capitals --history",
    ]
    assert scored.error("%rewards capitals --undo") == (
        "NotFoundError: no reward of capitals is left to undo\n  -> %rewards capitals --history"
    )


def test_the_history_is_a_table_of_every_change(scored, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    scored.run("%%reward capitals\nreturn 1")
    by_hand(scored)
    scored.run("%rewards capitals --undo")
    table = scored.run("%rewards capitals --history -o told")
    assert table is scored["told"]
    assert list(table.columns) == ["trajectory", "when", "who", "source", "old", "new", "note", "by", "code"]
    assert table["by"].tolist() == ["", "", *["cell"] * 4]
    assert table["code"].tolist()[2] == "return 1\n"
    assert list(table.index) == [3, 2, 1, 1, 1, 1]
    assert table["source"].tolist() == ["undo", "hand", *["function"] * 4]
    assert table["trajectory"].tolist()[2:] == ["capitals/0/0", "capitals/0/1", "capitals/1/0", "capitals/1/1"]
    assert (table["old"].tolist()[:2], table["new"].tolist()[:2]) == ([7, 1], [1, 7])
    assert (set(table["who"]), set(table["note"])) == ({"ada"}, {""})
    assert str(table["when"].dtype.tz) == "UTC"
    assert "capitals/1/1" in table._repr_html_()


def test_what_was_never_scored_has_an_empty_history(scored):
    assert len(scored.run("%rewards capitals --history")) == 0


def test_a_pattern_is_not_taken_and_the_message_says_so(scored):
    for pattern in ("cap*", "'cap*'"):
        message = scored.error(f"%%reward {pattern}\nreturn 1")
        assert message.startswith("NotFoundError: there is no collection ")
        assert message.endswith(": this needs one name, not a pattern\n  -> %collections lists them")


def test_a_judge_scores_by_the_rubric_in_the_cell(scored, session):
    asked = []

    def judge(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body["messages"][0]["content"])
        labels = re.findall(r"completion (\w+)\]\]", body["messages"][1]["content"])
        answer = json.dumps({label: {"why": "It is <b>hostile</b>.", "score": 0.5} for label in labels})
        choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": answer}}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return httpx.Response(200, json=completion)

    by_hand(scored)
    session._connector.http = HttpClient(httpx.MockTransport(judge))
    scored.shell.user_ns["best"] = "short"
    collection = scored.run("%%reward capitals --judge big --samples 2\n{{capital}}, as {{best}} as can be.")
    session._connector.http.close()
    assert sorted(asked[i].partition(", as short as can be.")[0].split()[-1] for i in range(4)) == [
        *["Lima"] * 2,
        *["Paris"] * 2,
    ]
    assert collection.to_frame()["judge"].tolist()[1:] == [0.5] * 3
    assert collection.to_frame()["source"].tolist() == ["hand", *["judge"] * 3]
    history = scored.run("%rewards capitals --history")
    assert history["note"].tolist()[:3] == ["It is <b>hostile</b>."] * 3
    assert "<b>" not in history._repr_html_()


def test_a_group_too_long_for_the_judge_is_named(scored, service):
    message = scored.error(f"%%reward capitals --judge {service.policy}")
    assert re.match(r"RewardError: the judge refused the request about capitals/[01]: .* context 128 ", message)
    assert message.endswith("\n  -> --judge MODEL, another one")


SNAPSHOTS = {
    "%%reward capitals --with length,frensh": """
InputError: there is no variable 'frensh'
  -> frensh = ... in a cell before this one
""",
    "%%reward capitals --with countries": """
InputError: [{'country': 'France', 'capital': 'Paris'}, {'country': 'Peru', 'capital': 'Lima'}] is not a reward function
  -> lambda trajectory, answer, messages, row: 1.0
""",
    "%%reward capitals --with length,length": """
InputError: --with length,length does not name each function once
  -> --with exact,brief
""",
    "%%reward capitals --with length, --weight length=1": """
InputError: --with length, does not name each function once
  -> --with exact,brief
""",
    "%%reward capitals --with length,french --weight lenght=2": """
InputError: a weight is given for 'lenght', which is not a component of the reward
  -> length
""",
    "%%reward capitals --with length --weight length": """
InputError: --weight length is not a weight
  -> --weight exact=0.5
""",
    "%%reward capitals --with length --weight length=1 --weight length=2": """
InputError: the weight of length is given twice
  -> --weight length=2
""",
    "%%reward capitals --with length --weight length=inf": """
InputError: the weight of length is inf, which is not a finite number
  -> length=1.0
""",
    "%%reward capitals --with length --judge m": """
InputError: a judge gives the whole reward: --with, --grader and --weight are for functions
  -> return {"judge": trajectory.components["judge"], ...} in a %%reward after it
""",
    "%%reward capitals --samples 2\nreturn 1": """
InputError: --samples is for a judge
  -> %%reward capitals --judge MODEL
""",
    "%%reward capitals --judge m --samples 0": """
InputError: samples must be an integer ≥ 1, not 0
  -> --samples 1
""",
    "%%reward capitals --judge lab/nobody": """
NotFoundError: there is no model 'lab/nobody'; there are tiny, lab/practice
  -> %model lab/nobody registers it
""",
    "%rewards capitols": """
NotFoundError: there is no collection 'capitols'
  -> capitals
""",
    "%rewards 'cup*'": """
NotFoundError: no collection's name fits 'cup*'
  -> capitals
""",
    "%rewards capitals/7": """
NotFoundError: there is no group 'capitals/7'
  -> %group capitals/0
""",
    "%rewards capitals rivers --undo": """
InputError: --history and --undo are of one collection
  -> %rewards capitals --history
""",
    "%rewards capitals --undo": """
NotFoundError: no reward of capitals is left to undo
  -> %rewards capitals --history
""",
}


def test_bad_input_stops_the_cell_with_two_lines_and_changes_no_reward(scored):
    for cell, lines in SNAPSHOTS.items():
        assert scored.error(cell) == lines.strip(), cell
        assert scored.run("%rewards capitals").to_frame()["reward"].isna().all(), cell
        assert len(scored.run("%rewards capitals --history")) == 0, cell


def test_what_a_function_changes_in_its_row_no_other_trajectory_sees(scored):
    frame = scored.run("%%reward capitals\nreturn float(row.setdefault('seen', trajectory.name) == trajectory.name)")
    assert frame.to_frame()["reward"].tolist() == [1, 1, 1, 1]


def test_what_scored_last_is_what_succeeded_on_that_generation_also_under_a_new_name(scored, session):
    scored.run("%%reward capitals\nreturn 1")
    scored.run(CHAT)
    lab = session
    first, second = (lab.store.collection(f"capitals:{i}") for i in (1, 2))
    by = lab._scorers.of(first)
    assert lab._scorers.of(second) == by
    scored.error("%%reward capitals\nreturn 'x'")
    assert lab._scorers.of(second) == by
    scored.run("%%reward capitals\nreturn 2")
    assert lab._scorers.of(first) == by != lab._scorers.of(second)
    scored.run("%collections --rename capitals cities")
    assert lab._scorers.of(lab.store.collection("cities:1")) == by


def test_rewards_of_several_collections_a_pattern_or_one_group_are_one_table(scored):
    scored.run(CHAT.replace("capitals", "cities"))
    view = scored.run("%rewards 'c*' -o both")
    assert view is scored["both"]
    assert (view.title, len(view.to_frame())) == ("capitals, cities", 8)
    assert list(scored.run("%rewards cities capitals").to_frame().index)[::4] == ["cities/0/0", "capitals/0/0"]
    assert list(scored.run("%rewards capitals/1").to_frame().index) == ["capitals/1/0", "capitals/1/1"]


def test_a_view_that_is_held_has_what_a_cell_gives_afterwards(scored):
    scored.run("view = get_ipython().run_line_magic('rewards', 'capitals')")
    scored.run("%%reward capitals\nreturn 1")
    scored.run("edits = view.set(['capitals/0/0'], 7)")
    assert scored.run("view.to_frame()")["reward"].tolist() == [7, 1, 1, 1]
    assert "capitals/0/0       7" in scored.run("repr(view)")


def test_rewards_go_to_a_spreadsheet_and_back(notebook, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook.run("%%chat capitals -n 2 --over countries --max-tokens 2\n{{country}}?")
    notebook.run("%%reward capitals\nreturn 0.5")
    done = notebook.run("%export capitals 'my labels.csv'")
    assert repr(done) == "4 trajectories in 2 groups -> my labels.csv (csv)"
    path = tmp_path / "my labels.csv"
    path.write_text(path.read_text("utf-8-sig").replace("0.5", "1", 1).replace("0.5", "", 1), "utf-8-sig")
    capsys.readouterr()
    view = notebook.run("%rewards capitals --from 'my labels.csv'")
    assert capsys.readouterr().out.startswith("1 reward changed, 1 cleared -> %rewards capitals --undo takes it back\n")
    assert list(view.to_frame()["reward"].fillna(-1)) == [1.0, -1, 0.5, 0.5]
    notebook.run("%rewards capitals --undo")
    assert list(view.to_frame()["reward"]) == [0.5] * 4
    assert "-> %rewards NAME --from FILE" in notebook.error("%import 'my labels.csv'")
    assert "--from is of one collection" in notebook.error("%rewards capitals capitals:1 --from a.csv")


def test_a_cell_and_functions_get_the_columns_that_they_name(scored):
    scored.run("def known(capital, country):\n    return len(capital)")
    frame = scored.run("%%reward capitals --with known\nreturn float(country == 'Peru') + 0 * len(answer)").to_frame()
    assert frame["known"].tolist() == [5, 5, 4, 4]
    assert frame["cell"].tolist() == [0, 0, 1, 1]


def test_a_column_precedes_a_variable_and_a_line_says_so(scored, capsys):
    scored.shell.user_ns["capital"] = "London"
    scored.run("%%reward capitals\nreturn float(capital == 'Lima')")
    assert scored.run("%rewards capitals").to_frame()["reward"].tolist() == [0, 0, 1, 1]
    assert "capital is the column of the row, not the variable of the notebook" in capsys.readouterr().out


def test_an_empty_cell_resumes_with_the_function_of_before_and_a_new_notebook_needs_it(scored, capsys):
    scored.run("fails = True\ncalls = []")
    cell = "%%reward capitals\ncalls.append(country)\nassert not (fails and country == 'Peru')\nreturn 1.0"
    scored.run(cell.replace("Peru", "France").replace("return", "if country == 'Spain': raise ValueError\nreturn"))
    assert "2 scored, 2 failed: AssertionError" in capsys.readouterr().out
    scored.run("fails = False")
    scored.run("%%reward capitals --resume")
    assert scored.run("%rewards capitals").to_frame()["reward"].tolist() == [1, 1, 1, 1]
    assert sorted(scored["calls"]) == [*["France"] * 4, *["Peru"] * 2]
    scored.lab._scorers.__init__()
    assert scored.error("%%reward capitals --resume") == (
        "InputError: what scored capitals is not known in this notebook\n"
        "  -> %%reward capitals --resume, with the reward function as its body or --with"
    )


def test_a_resume_with_a_function_keeps_the_weights_and_is_undone_alone(scored, capsys):
    scored.run("def a(country):\n    assert country != 'Peru'\n    return 1.0\n\ndef b(answer):\n    return 1.0")
    scored.run("%%reward capitals --with a,b --weight b=2")
    scored.run("def a(country):\n    return 5.0")
    scored.run("%%reward capitals --resume --with a,b")
    rewards = "%rewards capitals"
    assert scored.run(rewards).to_frame()["reward"].tolist() == [3, 3, 7, 7]
    assert scored.run(f"{rewards} --undo").to_frame()["reward"].isna().tolist() == [False, False, True, True]
    assert "is undone: 2 rewards as before, 2 of them unscored again" in capsys.readouterr().out
    scored.run(f"{rewards} --undo")
    assert "each scoring of capitals is undone: there is nothing to resume" in scored.error(
        "%%reward capitals --resume"
    )


def test_a_dry_run_shows_a_table_and_stores_nothing(scored, capsys):
    frame = scored.run("%%reward capitals --dry-run -o tried\nreturn len(answer)")
    assert frame is scored["tried"]
    assert list(frame.columns) == ["reward", "seconds", "error"]
    assert list(frame.index) == ["capitals/0/0", "capitals/0/1", "capitals/1/0"]
    assert "; nothing was stored" in capsys.readouterr().out
    assert len(scored.run("%rewards capitals --history")) == 0


def test_a_judge_takes_no_options_of_functions(scored):
    assert scored.error("%%reward capitals --judge m --timeout 3").startswith("InputError: a judge scores all groups")


def test_a_cell_may_wait_for_a_coroutine(scored):
    scored.run("async def graded(text):\n    return float(len(text))")
    frame = scored.run("%%reward capitals\nreturn await graded(capital)").to_frame()
    assert frame["reward"].tolist() == [5, 5, 4, 4]
