"""Jobs of a lab: listed with what became of them, found again from any kernel, never asked in vain."""

from collections.abc import Iterator

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import NotFoundError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import SubmittedJob

LOST = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


@pytest.fixture
def asked(service, monkeypatch) -> list[str]:
    """The path of every request."""
    paths: list[str] = []
    request = service.http.request

    async def counted(method, url, **options):
        paths.append(url.removeprefix(service.address.base_url))
        return await request(method, url, **options)

    monkeypatch.setattr(service.http, "request", counted)
    return paths


@pytest.fixture
def scored(session):
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    return session


@pytest.fixture
def elsewhere(tmp_path, service) -> Iterator[Session]:
    """A session on the same lab that talks to another service, which nobody runs."""
    address = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1")
    session = Session(Settings(home=tmp_path, service=address), http=HttpClient(backoff=0))
    yield session
    session.close()


def quiet(line: str) -> None:
    pass


def submitted(job_id: str = LOST, service: str = "embedded") -> SubmittedJob:
    return SubmittedJob(job_id, service, "lab/practice", ("capitals:1",), {"epsilon": 0.2}, "2026-01-31T12:00:00+00:00")


def test_a_job_that_was_followed_is_listed_with_its_end_and_nobody_is_asked(scored, asked):
    job = scored.train("capitals", {"epsilon": 0.2}, say=quiet)
    asked.clear()
    row = scored.jobs().loc[job.id[:8]]
    assert (row["status"], row["step"], row["collections"]) == ("succeeded", 1, "capitals")
    assert (row["model"], row["options"]) == ("lab/practice", "epsilon 0.2")
    assert asked == []


def test_the_collections_of_a_job_are_listed_as_they_are_called_now(scored):
    scored.store.jobs.add(submitted("0123"))
    assert scored.jobs()["collections"].tolist() == ["capitals"]
    scored.store.open_collection("capitals")
    assert scored.jobs()["collections"].tolist() == ["capitals:1"]
    scored.delete("capitals", say=quiet)
    assert scored.jobs()["collections"].tolist() == ["capitals:1"]


def test_jobs_that_may_have_changed_are_asked_once_each_until_they_have_ended(scored, asked, service):
    jobs = [scored.train("capitals", wait=False, say=quiet) for _ in range(3)]
    for job in jobs:
        service.ended(job.id)
    asked.clear()
    assert scored.jobs()["status"].tolist() == ["succeeded"] * 3
    assert scored.jobs()["step"].tolist() == [3, 2, 1]
    assert sorted(asked) == sorted(f"/v1/preview/training-jobs/{job.id}" for job in jobs)


def test_a_cancelled_job_is_listed_as_such(scored, service):
    service.jobs.close()  # so that it waits
    job = scored.train("capitals", wait=False, say=quiet)
    assert scored.jobs()["status"].tolist() == ["queued"]
    job.cancel()
    assert scored.jobs()["status"].tolist() == ["cancelled"]
    assert scored.jobs()["step"].isna().all()


def test_a_job_that_its_service_does_not_know_is_unknown_and_says_what_may_have_happened(session, service):
    session.store.jobs.add(submitted(service=service.address.base_url))
    assert session.jobs()["status"].tolist() == ["unknown"]
    with pytest.raises(NotFoundError, match="never arrived") as refused:
        session.job().wait()
    assert refused.value.hint == "%%train submits another"


def test_a_service_that_does_not_answer_is_unreachable(elsewhere):
    elsewhere.store.jobs.add(submitted(service="http://127.0.0.1:9"))
    assert elsewhere.jobs()["status"].tolist() == ["unreachable"]
    elsewhere.store.jobs.set_status(LOST, "succeeded", 7)
    assert elsewhere.jobs()[["status", "step"]].to_numpy().tolist() == [["succeeded", 7]]


def test_without_a_service_the_last_known_status_is_listed_and_none_is_started(tmp_path):
    session = Session(Settings(home=tmp_path, policy="/nowhere/practice"))
    session.store.jobs.add(submitted())
    assert session.jobs()["status"].tolist() == ["unknown"]
    session.store.jobs.set_status(LOST, "running")
    assert session.jobs()["status"].tolist() == ["running"]
    assert not session.settings.service_folder.exists()
    session.close()


def test_without_an_id_the_newest_job_is_meant(scored):
    first, second = (scored.train("capitals", wait=False, say=quiet) for _ in range(2))
    assert scored.job().id == second.id
    assert scored.job(first.id[:8]).id == first.id


def test_an_id_that_several_jobs_begin_with_is_no_job(session, service):
    for last in "12":
        session.store.jobs.add(submitted(LOST[:-1] + last, service.address.base_url))
    with pytest.raises(NotFoundError, match="2 jobs of this lab begins with '0000'"):
        session.job("0000")


def test_a_job_of_a_service_that_is_not_known_here_says_how_to_connect(session):
    session.store.jobs.add(submitted(service="https://other"))
    with pytest.raises(NotFoundError, match="the job was sent to https://other, which is not connected") as unknown:
        session.job()
    assert unknown.value.hint == "%connect https://other"
    assert session.jobs()["status"].tolist() == ["unknown"]


def test_a_job_is_found_again_by_another_kernel_at_the_beginning_of_its_id(scored, service, tmp_path):
    job = scored.train("capitals", wait=False, say=quiet)
    again = Session(scored.settings, http=service.http)
    assert again.job(job.id[:6]).wait().step == 1
    assert again.jobs()["status"].tolist() == ["succeeded"]
    again.store.close()


def test_a_kernel_that_died_before_the_answer_has_its_job_under_the_key_that_it_sent(scored, service, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(scored.store.jobs, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        scored.train("capitals", say=quiet)
    assert scored.job().wait().status == "succeeded"
    assert scored.jobs()["step"].tolist() == [1]


def test_the_steps_of_a_job_can_be_plotted(scored):
    job = scored.train("capitals", say=quiet)
    assert [line.split()[0] for line in repr(job.plot()).splitlines()] == ["reward", "loss", "entropy", "grad_norm"]
    assert [plot.title for plot in job.plot("kl", "nothing").plots] == ["kl"]
    assert "gradient step" in job.plot()._repr_svg_()


def test_before_its_first_step_there_is_nothing_to_plot(scored, service):
    service.jobs.close()
    job = scored.train("capitals", wait=False, say=quiet)
    assert repr(job.plot()) == "job on lab/practice: no gradient steps to plot yet"


def test_chatting_on_asks_for_nothing_but_completions(session, asked):
    for _ in range(2):
        session.chat("capitals", "Capital of Peru?", n=2, max_tokens=4)
    assert asked == ["/v1/preview/models", "/v1/chat/completions", "/v1/chat/completions"]


def test_models_are_listed_with_their_base_and_checkpoints(scored):
    scored.train("capitals", say=quiet)
    scored.model("lab/other")
    models = scored.models()
    assert models.loc["lab/practice"].tolist() == ["tiny", 1, 2]
    assert models.loc["lab/other"].tolist() == ["tiny", 0, 1]
    assert models.loc["tiny"].isna().all()


def test_of_a_service_that_only_names_its_models_the_names_are_listed(session, service, monkeypatch):
    async def answer(*_, **__):
        return {"object": "list", "data": [{"id": "big", "object": "model", "created": 1, "owned_by": "someone"}]}

    monkeypatch.setattr(service.http, "request", answer)
    assert session.models().index.tolist() == ["big"]
    assert session.models().isna().all(axis=None)
