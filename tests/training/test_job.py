"""A job that is looked at: its events come as they happen, its end is kept, and it can be cancelled from there."""

from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError, JobFailedError, UnreachableError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.training.job import Job

LONGEST = 240.0


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


class Page:
    """A browser that shows a job: what it was told, taken together as a page does."""

    def __init__(self, job: Job) -> None:
        self._told: Queue[dict[str, Any]] = Queue()
        job.listen(lambda event, **data: self._told.put({"event": event, **data}))
        self.job = job
        self.state = job.answer({"id": 1, "call": "watch"})["result"]
        self.numbers = self.state["numbers"]
        self.head = self.state["head"]

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Listen until the head is as wanted."""
        while not wanted(self.head):
            news = self._told.get(timeout=LONGEST)
            assert news["event"] == "news"
            self.head = news["head"]
            for name in {*self.numbers, *news["numbers"]}:
                known = self.numbers.setdefault(name, [])
                known[news["begin"] :] = news["numbers"].get(name, [])
        return self.head


@pytest.fixture
def scored(session):
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    return session


def quiet(line: str) -> None:
    pass


def ended(head: dict[str, Any]) -> bool:
    return bool(head["ended"])


def test_a_page_that_looks_at_a_job_hears_of_it_until_it_has_ended(scored):
    page = Page(scored.train("capitals", wait=False, say=quiet))
    head = page.until(ended)
    assert (head["status"], head["made"]) == ("succeeded", "lab/practice@1")
    assert head["next"][0].endswith(" --before 0 --after 1")
    assert page.numbers == page.job.state()["numbers"]
    assert page.numbers["ratio_mean"][0] == pytest.approx(1.0, abs=1e-3)


def test_what_a_page_heard_of_the_end_is_in_the_lab(scored):
    page = Page(scored.train("capitals", wait=False, say=quiet))
    page.until(ended)
    page.job._follower.result(LONGEST)
    assert scored.store.jobs.newest_first()[0].status == "succeeded"
    assert scored.store.jobs.events(page.job.id) == page.job.events()


def test_an_ended_job_is_the_same_when_its_service_is_gone(scored, tmp_path):
    job = scored.train("capitals", say=quiet)
    other = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1")
    later = Session(Settings(home=tmp_path, service=other), http=HttpClient(backoff=0))
    again = later.job(job.id)
    assert repr(again) == repr(job)
    was, now = job.state(), again.state()
    assert was["head"].pop("next")[0].startswith("%compare capitals ")
    assert now["head"].pop("next")[0].startswith("%%compare capitals ")  # no function has scored it in that notebook
    assert now == was
    assert again.wait().step == 1
    assert len(again.metrics()) == 1
    later.close()


def test_no_comparison_is_suggested_on_what_was_not_sampled_from_prompts_here(scored, tmp_path):
    scored.files.export("capitals", tmp_path / "capitals.jsonl")
    scored.files.import_(tmp_path / "capitals.jsonl", "elsewhere")
    scored.continue_chat("capitals", "user: and its rivers?", max_tokens=4)
    scored.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    for name in ("elsewhere", "capitals"):
        head = scored.train(name, say=quiet).state()["head"]
        assert head["next"] == [], name
        with pytest.raises(InputError, match=r"not sampled from prompts|nothing scored"):
            scored.compare(name)
    both = scored.train(["elsewhere", "capitals:1"], say=quiet).state()["head"]["next"]
    assert both[0].startswith("%compare capitals:1 --before ")


def test_a_comparison_is_suggested_over_rows_that_were_not_trained_on(session):
    rows = [{"country": "Peru"}, {"country": "France"}]
    session.chat("capitals", "Capital of {{country}}?", n=4, max_tokens=4, seed=1, over=rows)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    suggested = session.train("capitals", say=lambda _: None).state()["head"]["next"][0]
    assert suggested.startswith("%compare capitals --before ")


def test_an_interrupted_wait_says_that_the_job_goes_on(scored, service, monkeypatch):
    service.jobs.close()  # so that it waits
    job = scored.train("capitals", wait=False, say=quiet)

    def interrupt(*_, **_part):
        raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        job.wait()
    short = job.id[:8]
    message, hint = stopped.value._render_traceback_()
    assert message == "KeyboardInterrupt: the job goes on"
    assert hint == f"  -> %job {short} --wait follows it, %job {short} --cancel ends it"


def test_a_job_that_is_not_looked_at_is_not_followed(scored, service):
    service.jobs.close()  # so that it waits
    job = scored.train("capitals", wait=False, say=quiet)
    job.follow()
    assert job._follower is None


def test_a_page_that_comes_again_gets_the_whole(scored):
    first = Page(scored.train("capitals", wait=False, say=quiet))
    first.until(ended)
    second = Page(first.job)
    assert (second.head, second.numbers) == (first.head, first.numbers)


def test_a_job_is_cancelled_from_a_page(scored, service):
    service.jobs.close()
    page = Page(scored.train("capitals", wait=False, say=quiet))
    answer = page.job.answer({"id": 2, "call": "cancel"})
    assert "error" not in answer
    assert page.until(ended)["status"] == "cancelled"
    assert page.head["next"] == ["%%train capitals"]
    with pytest.raises(JobFailedError, match="was cancelled"):
        page.job.wait()


def test_a_service_that_does_not_answer_is_told_to_the_page_and_asked_again(scored, service, monkeypatch):
    job = scored.train("capitals", wait=False, say=quiet)
    find, failures = job._find, [UnreachableError("nothing answers", hint="%service log")]

    def find_later(start: bool) -> Address:
        if failures:
            raise failures.pop()
        return find(start)

    monkeypatch.setattr(job, "_find", find_later)
    monkeypatch.setattr("rolloutlab.training.job._RETRY_SECONDS", 0.01)
    page = Page(job)
    assert page.until(lambda head: bool(head["trouble"]))["trouble"] == "nothing answers -> %service log"
    assert page.until(ended)["trouble"] == ""


def test_what_nobody_foresaw_is_told_to_the_page_and_logged(scored, service, monkeypatch, caplog):
    job = scored.train("capitals", wait=False, say=quiet)
    find = job._find
    monkeypatch.setattr(job, "_find", lambda start: {}["address"])
    page = Page(job)
    assert page.until(lambda head: bool(head["trouble"]))["trouble"] == "KeyError: 'address'"
    assert isinstance(job._follower.exception(LONGEST), KeyError)
    monkeypatch.setattr(job, "_find", find)
    job.answer({"id": 2, "call": "watch"})
    assert page.until(ended)["trouble"] == ""
    assert "KeyError: 'address'" in caplog.text


def test_who_only_looks_at_a_job_starts_no_service(scored, service):
    job = scored.train("capitals", wait=False, say=quiet)
    asked = []
    find = job._find
    job._find = lambda start: asked.append(start) or find(start)
    assert Page(job).until(ended)
    assert asked == [False]


def test_events_that_were_read_twice_are_there_once(scored):
    page = Page(scored.train("capitals", wait=False, say=quiet))
    page.job.wait(progress=False)
    ids = [event.id for event in page.job.events()]
    assert len(ids) == len(set(ids))


def test_closing_ends_what_follows(scored, service):
    service.jobs.close()
    page = Page(scored.train("capitals", wait=False, say=quiet))
    service.http.close()
    assert page.job._follower.cancelled()
