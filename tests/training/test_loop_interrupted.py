"""A loop that is ended at any moment goes on where it stopped, and becomes what it would have been."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest

from rolloutlab import Step
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.scorings import Scorings
from rolloutlab.training import submission
from rolloutlab.training.job import Job

ROWS = [{"country": "France"}, {"country": "Peru"}, {"country": "Chad"}]
PROMPT = "Capital of {{country}}?"
JOBS = 3


class Killed(BaseException):
    """In the place of SIGKILL: from here on nothing of this process reaches the disk."""


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture
def kernel(service, tmp_path) -> Iterator[Callable[..., Session]]:
    """Makes the session of a new kernel on a lab of this test."""
    sessions: list[Session] = []

    def begin(name: str = "lab") -> Session:
        sessions.append(Session(Settings(home=tmp_path / name, service=service.address), http=service.http))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()


def by_length(answer, trajectory):
    """A reward of the answer alone, which differs within most groups."""
    return (sum(map(ord, answer)) % 7) / 7


def of_peru(trajectory, row):
    """A reward that the first two of a row do not differ in."""
    return float(row["country"] == "Peru" and trajectory.position == 2)


def loop(session: Session, jobs: int = JOBS, reward: Any = by_length, lines: list[str] | None = None, **options: Any):
    given = {"over": ROWS, "n": 2, "max_tokens": 4, "seed": 1, "every": 2, "held_out": ROWS[:2], "concurrency": 1}
    say = ([] if lines is None else lines).append
    given |= options
    return session.loop("capitals", given.pop("prompt", PROMPT), reward, jobs=jobs, say=say, **given)


def generations(session: Session) -> dict[str, Any]:
    """Every completion of the lab, with its tokens' logprobs and its reward."""
    stored = session.store.collections()
    return {
        f"{each.name}:{each.generation}": [
            (t.name.partition("/")[2], [item.to_wire() for item in t.choices], t.reward, t.step, t.sampling["seed"])
            for t in session.collection(f"{each.name}:{each.generation}").trajectories
        ]
        for each in stored
    }


def without_ids(value: Any) -> Any:
    """Choices of two runs are alike but for what the service numbers."""
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key != "id"}
    return [without_ids(each) for each in value] if isinstance(value, list | tuple) else value


def outcome(session: Session, service) -> tuple[Any, ...]:
    """What a loop has made: completions, jobs, and the step and digest of each adapter."""
    jobs = [(job.collections, job.options, job.status, job.step) for job in session.store.jobs.newest_first()]
    adapters = sorted(
        (path.parent.name, path.name, sha256(path.read_bytes()).hexdigest())
        for path in (service.folder / "models").rglob("*.safetensors")
    )
    return without_ids(generations(session)), jobs, adapters


def nth(number: int, real: Callable[..., Any], wanted: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    """The call, in the place of which a process is killed when it is the `number`th one that is wanted."""
    seen = []

    def call(*given: Any, **named: Any) -> Any:
        if wanted(*given):
            seen.append(None)
        if len(seen) >= number:
            raise Killed
        return real(*given, **named)

    return call


def puts_into(name: str, generation: int) -> Callable[..., bool]:
    def wanted(lab: Lab, placed: Any) -> bool:
        rows = lab._database.read(
            "SELECT c.name, c.generation FROM collections c JOIN groups g ON g.collection_id = c.id WHERE g.id = ?",
            placed[0].group.id,
        )
        return [tuple(row) for row in rows] == [(name, generation)]

    return wanted


def during_sampling(patch: pytest.MonkeyPatch, name: str = "capitals", generation: int = 2) -> None:
    patch.setattr(Lab, "put_all", nth(2, Lab.put_all, puts_into(name, generation)))


def after_sampling(patch: pytest.MonkeyPatch, number: int = 3) -> None:
    """Scored before are the held-out rows and round 1."""
    patch.setattr(Scorings, "begin", nth(number, Scorings.begin))


def during_scoring(patch: pytest.MonkeyPatch, number: int = 3) -> None:
    begin, store, begun = Scorings.begin, Scorings.store, []

    def count(*given: Any) -> Any:
        begun.append(None)
        return begin(*given)

    def one(scorings: Scorings, change: int, source: str, scores: Any, *rest: Any, **named: Any) -> Any:
        if len(begun) < number:
            return store(scorings, change, source, scores, *rest, **named)
        store(scorings, change, source, scores[:1], **named)
        raise Killed

    patch.setattr(Scorings, "begin", count)
    patch.setattr(Scorings, "store", one)


def after_scoring(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "train", nth(2, Session.train))


def before_the_service_has_the_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submission, "deliver", nth(2, submission.deliver))


def before_the_response(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubmittedJobs, "rename", nth(2, SubmittedJobs.rename))


def after_submission(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "wait", nth(2, Job.wait))


def while_measuring(patch: pytest.MonkeyPatch) -> None:
    during_sampling(patch, "held_out.capitals", 2)


def while_scoring_what_is_held_out(patch: pytest.MonkeyPatch) -> None:
    during_scoring(patch, 4)


@contextmanager
def killed(patch_it: Callable[[pytest.MonkeyPatch], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch_it(patch)
        try:
            yield
        except Killed:
            return
    pytest.fail("it was not killed")


MOMENTS = {
    during_sampling: ("round 2 goes on: 2 of 6 completions were sampled", 2),
    after_sampling: ("round 2 goes on: 0 of 6 completions were scored", 2),
    during_scoring: ("round 2 goes on: 1 of 6 completions were scored", 2),
    after_scoring: ("round 2 goes on: 6 completions were scored, and nothing was trained on them", 2),
    before_the_service_has_the_job: ("round 2 goes on: 6 completions were scored, and nothing was trained on them", 2),
    before_the_response: ("round 2 goes on: its job was submitted", 2),
    after_submission: ("round 2 goes on: its job was submitted", 2),
    while_measuring: ("measuring the held-out rows goes on: 2 of 4 completions were sampled", 1),
    while_scoring_what_is_held_out: ("measuring the held-out rows goes on: 1 of 4 completions were scored", 1),
}


@pytest.fixture
def whole(kernel, service) -> tuple[Any, ...]:
    """What the loop makes when nothing ends it."""
    session = kernel("whole")
    loop(session)
    made = outcome(session, service)
    service.empty()
    return made


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_loop_goes_on_in_the_round_where_it_stopped_and_equals_one_that_was_not(
    kernel, service, whole, moment
):
    with killed(moment):
        loop(kernel())
    lines: list[str] = []
    text, left = MOMENTS[moment]
    again = kernel()
    made = loop(again, left, lines=lines)
    assert lines[0] == text
    assert text in made._repr_html_()
    assert outcome(again, service) == whole
    assert len(made.rounds) == JOBS + 1  # the last has what was held out after it


def test_what_measures_the_best_checkpoint_again_goes_on_too(kernel, service, whole):
    def while_measuring_again(patch: pytest.MonkeyPatch) -> None:
        during_sampling(patch, "best.capitals", 1)

    with killed(while_measuring_again):
        loop(kernel())
    session = kernel()
    assert loop(session, 0).again == {}  # half of it is no mean
    lines: list[str] = []
    loop(session, 1, lines=lines, every=9)
    going_on = [line for line in lines if "best" in line and "on" in line]
    assert going_on[0].startswith("measuring the best checkpoint again")


def test_an_interrupted_top_up_goes_on(kernel, service):
    options = {"reward": of_peru, "top_up": 3, "n": 2, "held_out": None}
    session = kernel("whole")
    loop(session, 2, **options)
    made = outcome(session, service)
    service.empty()

    def during_top_up(patch: pytest.MonkeyPatch) -> None:
        wanted = puts_into("capitals", 2)
        patch.setattr(Lab, "put_all", nth(len(ROWS) + 2, Lab.put_all, wanted))

    with killed(during_top_up):
        loop(kernel(), 2, **options)
    lines: list[str] = []
    again = kernel()
    loop(again, 1, lines=lines, **options)
    assert lines[0].startswith("round 2 goes on: ")
    assert outcome(again, service) == made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prompt": "The capital of {{country}}?"}, "prompt"),
        ({"over": ROWS[:2]}, "rows"),
        ({"reward": lambda answer: float(len(answer))}, "reward"),
        ({"temperature": 0.5}, "temperature"),
        ({"n": 3}, "n"),
        ({"seed": 2}, "seed"),
        ({"prompt": "Of {{country}}?", "max_tokens": 5}, "prompt, max_tokens"),
    ],
)
def test_a_round_that_began_otherwise_is_left_as_it_is_and_the_next_one_begins(kernel, service, changed, words):
    with killed(during_scoring):
        loop(kernel(), every=9)
    lines: list[str] = []
    session = kernel()
    made = loop(session, 1, lines=lines, every=9, **changed)
    stopped = [line for line in lines if line.startswith("round 2")]
    assert stopped == [f"round 2 cannot go on, as what follows changed since it began: {words}"]
    assert [one.number for one in made.rounds] == [1, 2, 3, 4]
    assert session.jobs()["collections"].tolist() == ["capitals", "capitals:1"]
    assert session.store.collection("capitals:2").scored == 1


def test_a_reward_that_has_given_nothing_yet_may_change(kernel):
    with killed(lambda patch: after_sampling(patch, 1)):
        loop(kernel(), held_out=None)
    lines: list[str] = []
    made = loop(kernel(), 1, reward=lambda answer: float(len(answer) % 3), lines=lines, held_out=None)
    assert lines[0] == "round 1 goes on: 0 of 6 completions were scored"
    assert len(made.rounds) == 1


def test_a_round_that_an_older_checkpoint_sampled_is_left_as_it_is(kernel):
    with killed(after_scoring):
        loop(kernel(), held_out=None)
    session = kernel()
    session.train("capitals:1", say=lambda _: None)
    lines: list[str] = []
    loop(session, 1, lines=lines, held_out=None)
    assert lines[0] == "round 2 cannot go on, as what follows changed since it began: checkpoint"
    assert {t.step for t in session.collection("capitals:3").trajectories} == {2}


def test_a_round_in_which_nothing_trained_is_finished(kernel):
    session = kernel()
    loop(session, 1, reward=lambda answer: 1.0, held_out=None)
    lines: list[str] = []
    made = loop(session, 1, reward=lambda answer: 1.0, lines=lines, held_out=None)
    assert [one.number for one in made.rounds] == [1, 2]
    assert not any("goes on" in line for line in lines)


def test_a_resumed_round_is_one_of_the_rounds_of_its_call_and_options_are_asked_for_it(kernel):
    asked: list[int] = []

    def options(number: int) -> dict[str, float]:
        asked.append(number)
        return {"learning_rate": 1e-3 / number}

    with killed(after_scoring):
        loop(kernel(), held_out=None, options=options)
    assert asked == [1, 2]
    made = loop(kernel(), 2, held_out=None, options=options)
    assert asked == [1, 2, 2, 3]
    assert [one.options["learning_rate"] for one in made.rounds] == [1e-3, 1e-3 / 2, 1e-3 / 3]


def test_without_a_seed_a_half_round_keeps_the_seed_that_it_began_with(kernel):
    with killed(during_sampling):
        loop(kernel(), held_out=None, seed=None)
    session = kernel()
    seed = session.collection("capitals:2").stored.plan["seed"]
    loop(session, 1, held_out=None, seed=None)
    places = [t.sampling["seed"] for t in session.collection("capitals:2").trajectories]
    assert places == [seed] * 6
    assert session.store.collection("capitals").generation == 2


class Letters:
    """Two turns; a reward for each letter of the row in an answer."""

    def __init__(self, row):
        self.turns = 0

    def reset(self, seed):
        return f"say {seed % 7}"

    def step(self, answer):
        self.turns += 1
        return Step("more", len(answer) % 3, self.turns == 2)


def test_a_loop_with_an_environment_goes_on_too(kernel, service):
    def run(session: Session, jobs: int, lines: list[str]) -> None:
        given = {"n": 2, "seed": 1, "env": Letters, "max_tokens": 4, "concurrency": 1, "say": lines.append}
        session.loop("letters", over=[{"i": 0}, {"i": 1}], jobs=jobs, **given)

    session = kernel("whole")
    run(session, 2, [])
    made = outcome(session, service)
    service.empty()
    with killed(lambda patch: patch.setattr(Lab, "put_all", nth(3, Lab.put_all, puts_into("letters", 2)))):
        run(kernel(), 2, [])
    lines: list[str] = []
    again = kernel()
    run(again, 1, lines)
    assert lines[0].startswith("round 2 goes on: ")
    assert outcome(again, service) == made


def test_a_loop_with_a_program_goes_on_too(kernel, service):
    async def solve(row, client):
        answer = await client.chat.completions.create(
            messages=[{"role": "user", "content": row["country"]}], max_tokens=4
        )
        return float(len(answer.choices[0].message.content) % 3)

    def run(session: Session, jobs: int, lines: list[str]) -> None:
        given = {"n": 2, "seed": 1, "concurrency": 1, "say": lines.append}
        session.loop("agent", solve=solve, over=ROWS, jobs=jobs, **given)

    with killed(lambda patch: patch.setattr(Lab, "put_all", nth(3, Lab.put_all, puts_into("agent", 2)))):
        run(kernel(), 2, [])
    lines: list[str] = []
    again = kernel()
    run(again, 1, lines)
    assert lines[0].startswith("round 2 goes on: ")
    assert again.store.collection("agent:2").missing == 0


def test_a_loop_whose_last_rounds_trained_nothing_ends_after_as_many_as_one_that_was_not_ended(kernel):
    with killed(lambda patch: after_sampling(patch, 3)):
        loop(kernel(), 9, reward=lambda answer: 1.0, held_out=None, patience=3)
    made = loop(kernel(), 9, reward=lambda answer: 1.0, held_out=None, patience=3)
    assert len(made.rounds) == 3
    assert made.ended.startswith("nothing trained in 3 rounds in a row")
