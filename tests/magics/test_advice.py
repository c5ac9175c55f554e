"""The advice of reports and jobs, followed in the state that brought it about: it does what it says."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import RolloutlabError
from rolloutlab.magics import register
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import preflight
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from tests.labs import lab_with, without_logprobs
from tests.magics.conftest import GUESS, Notebook

SYSTEM = "system: Answer with the name of the city only.\nuser: What is the capital of {{country}}?"
FINE = "return float(sum(map(ord, answer)) % 97)"


@pytest.fixture
def service(start, practice_policy):
    """An untrained one for each test."""
    return start(practice_policy)


@dataclass
class State:
    """How a collection `capitals` came to be. reason: words about what does not train. then: a last step."""

    chat: str
    reward: str
    reason: str
    rows: tuple[str, ...] = ("France", "Peru", "Chad")
    then: str = ""

    def sample(self, notebook, *more: str) -> None:
        notebook.shell.user_ns["countries"] = [{"country": name} for name in self.rows]
        cell = "" if "--env" in self.chat else SYSTEM
        notebook.run(f"%%chat capitals --over countries --seed 1 {' '.join([self.chat, *more])}\n{cell}")
        if self.reward:
            notebook.run(f"%%reward capitals\n{self.reward}".replace("index", PLACE))
        if self.then:
            notebook.run(f"%%chat capitals {self.then}")

    def left_out(self, notebook) -> tuple[int, str]:
        """How many are left out for the reason, and the advice about it."""
        for line in repr(notebook.run("%%train capitals --dry-run\n")).splitlines():
            if match := re.fullmatch(rf"(\d+) left out: .*{self.reason}.* -> (.*)", line):
                return int(match[1]), match[2]
        return 0, ""


def finer(state: State, notebook) -> None:
    notebook.run(f"%%reward capitals\n{FINE}")


def resampled(*options: str) -> Callable[[State, object], None]:
    return lambda state, notebook: state.sample(notebook, *options)


def with_rows(*rows: str) -> Callable[[State, object], None]:
    def sample(state: State, notebook) -> None:
        state.rows = rows
        state.sample(notebook)

    return sample


ACTS: dict[str, Callable[[State, object], None]] = {
    "%%reward capitals": finer,
    "%%reward capitals with a finer score": finer,
    "a larger -n": resampled("-n 24"),
    "%%chat capitals --top-up": lambda state, notebook: notebook.run("%%chat capitals --top-up"),
    "--temperature 1": resampled("--temperature 1"),
    "a larger --max-tokens": resampled("--max-tokens 24"),
    "a larger --max-turns": resampled("--max-turns 5"),
    "over easier rows": with_rows("Chad", "Mali"),
    "over harder rows": with_rows("Chad", "Mali"),
}
"""What a person does who follows a piece of advice."""

PLACE = "int(trajectory.name.rpartition('/')[2])"
PARITY = "float(sum(map(ord, answer)) % 3 == 0)"
HARD = "country not in ('France', 'Peru')"
DONE = "trajectory.episode_end == 'done'"
STATES = {
    "all pass": State("-n 4", "return 1.0", "are equal"),
    "all fail": State("-n 4", "return 0.0", "are equal"),
    "some fail by chance": State("-n 2", f"return {PARITY} if {HARD} else float(index > 1)", "the lowest of this job"),
    "topped up": State("-n 4", f"return {PARITY} if {HARD} else 0.0", "the lowest of this job", then="--top-up"),
    "one answer": State("-n 1", FINE, "are equal"),
    "cut off": State("-n 8 --max-tokens 1", f"return {PARITY} if trajectory.finish_reason == 'stop' else 0.0",
                     "are equal.*; 24 of these cut off by max_tokens"),
    "greedy": State("-n 4 --temperature 0", FINE, "; 4 of these sampled at temperature 0"),
    "unscored": State("-n 4", "", "no reward yet"),
    "some groups fail": State("-n 4", f"return {PARITY} if {HARD} else 0.0", "the lowest of this job"),
    "some groups pass": State("-n 4", f"return {PARITY} if {HARD} else 1.0", "the highest of this job"),
    "ended": State("-n 4 --env Guess --max-turns 2 --max-tokens 40", f"return {PARITY} if {DONE} else 0.0",
                   r"; \d+ of these ended after max_turns answers"),
}  # fmt: skip
FOLLOWED = {
    "all pass": ["%%reward capitals with a finer score"],
    "all fail": ["%%reward capitals with a finer score"],
    "one answer": ["%%chat capitals --top-up"],
    "some fail by chance": ["%%chat capitals --top-up"],
    "topped up": ["over easier rows"],
    "cut off": ["a larger --max-tokens"],
    "greedy": ["--temperature 1"],
    "unscored": ["%%reward capitals"],
    "some groups fail": ["over easier rows"],
    "some groups pass": ["%%reward capitals with a finer score", "over harder rows"],
    "ended": ["a larger --max-turns"],
}


def alternatives(advice: str) -> list[str]:
    """The pieces of `sample capitals with a larger -n, or over easier rows`, as the keys of ACTS."""
    pieces = advice.split(", or ")
    return [re.sub(r"^sample (it|capitals) (with )?", "", piece) for piece in pieces]


@pytest.mark.parametrize(("name", "act"), [(name, act) for name, acts in FOLLOWED.items() for act in acts])
def test_advice_about_what_does_not_train_makes_it_train(notebook, name, act):
    state = STATES[name]
    notebook.run(GUESS)
    state = State(**vars(state))
    state.sample(notebook)
    before, advice = state.left_out(notebook)
    assert before
    assert set(alternatives(advice)) <= ACTS.keys()
    assert act in alternatives(advice)
    ACTS[act](state, notebook)
    assert state.left_out(notebook)[0] < before
    assert repr(notebook.run("%%train capitals\n")).startswith("job on lab/practice: succeeded, ")


def test_an_advantage_that_was_balanced_away_is_back_without_a_balance():
    group = [Member("a", 0.0, (1,)), Member("b", 1.0, ())]
    _, line, *_ = preflight([group], Options(advantage_balance=1.0)).words()
    assert "advantage_balance takes the whole advantage away (a) -> advantage_balance: 0" in line
    assert preflight([group], Options(advantage_balance=0)).trainable_trajectories == 1


def test_more_answers_train_more_of_the_groups_in_which_all_failed_or_passed():
    """A thousand groups of as many chances to pass: of those that were equal, how many are with more answers."""
    random = np.random.default_rng(0)
    chances_G = random.beta(0.5, 2, 1000)
    trained = {}
    for n in (4, 16):
        passed_GN = random.random((1000, n)) < chances_G[:, None]
        groups = [[Member(f"{g}/{i}", float(r), (1,)) for i, r in enumerate(row)] for g, row in enumerate(passed_GN)]
        trained[n] = [any(share.reason is None for share in group) for group in preflight(groups, Options()).shares]
    equal = ~np.array(trained[4])
    assert equal.sum() > 300
    assert np.array(trained[16])[equal].mean() > 0.25


def test_where_nothing_answers_the_hint_is_commands_that_run_there(bare, tmp_path):
    nowhere = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1")
    session = Session(Settings(home=tmp_path, service=nowhere), http=HttpClient(backoff=0))
    register(bare, session)
    notebook = Notebook(bare)
    lab_with(session.store, ["Paris", "Lyon"], rewards=[1, 0])
    assert "2 of 2 trajectories will train" in repr(notebook.run("%%train capitals --dry-run\n"))
    hint = notebook.error("%%train capitals\n").rpartition(" -> ")[2]
    assert "http://127.0.0.1:9" in repr(notebook.run(re.findall("%connect", hint)[0]))
    session.close()


def test_answers_without_logprobs_train_once_their_logprobs_are_added(notebook, session):
    lab_with(session.store, ["Paris", "Lyon"], rewards=[1, 0], make=without_logprobs)
    line = "2 left out: no sampled tokens with logprobs (capitals/0/0, capitals/0/1) -> %logprobs capitals"
    assert line in repr(notebook.run("%%train capitals --dry-run\n")).splitlines()
    notebook.run("%logprobs capitals")
    assert "2 of 2 trajectories will train" in repr(notebook.run("%%train capitals --dry-run\n"))


def test_a_job_advises_the_report_that_knows_how_answers_ended(notebook):
    state = State(**vars(STATES["some groups fail"]))
    state.sample(notebook)
    state.left_out(notebook)
    html = notebook.run("%%train capitals\n")._repr_html_()
    fixes = re.findall(r'<code class="rl-cell">(%%train[^<]*)</code>', html)
    assert fixes
    assert "the lowest of this job" in repr(notebook.run(f"{fixes[0]}\n"))


def test_what_a_job_says_to_type_next_compares_what_it_made_with_what_was_before(notebook):
    state = State("-n 4", FINE, "")
    state.sample(notebook)
    (line,) = notebook.run("%%train capitals\n").state()["head"]["next"]
    compared = repr(notebook.run(line))
    assert "lab/practice@0 -> lab/practice@1 on 3 prompts" in compared
    assert "no verdict, all of these prompts were trained on in between -> --over ROWS that were not" in compared


@pytest.mark.parametrize("options", ["", "ppo: true\nlearning_rate: 0.001"])
def test_what_a_cancelled_job_says_to_type_submits_the_same_once_more(notebook, service, options):
    State("-n 4", FINE, "").sample(notebook)
    service.jobs.close()  # so that it waits
    job = notebook.run(f"%%train capitals --no-wait\n{options}")
    notebook.run("%job --cancel")
    (line,) = notebook.run("%job").state()["head"]["next"]
    notebook.shell.user_ns["lab"] = notebook.lab
    again = notebook.run(f"{line} --no-wait\n" if line.startswith("%%") else f"{line[:-1]}, wait=False)")
    first, second = notebook.lab.store.jobs.newest_first()[:2]
    assert again.id != job.id
    assert first.options == second.options


def test_what_a_job_that_failed_by_an_option_says_to_type_leaves_it_out_and_succeeds(notebook):
    State("-n 4", FINE, "").sample(notebook)
    with pytest.raises(RolloutlabError, match="a lower learning_rate"):
        notebook.run("%%train capitals\nlearning_rate: 1e30\nppo: true")
    (line,) = notebook.run("%job").state()["head"]["next"]
    assert line == "lab.train(['capitals'], {'ppo': True})"
    notebook.shell.user_ns["lab"] = notebook.lab
    assert notebook.run(line).status == "succeeded"
