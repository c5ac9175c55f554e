"""Jobs of a lab: listed with what became of them, found again from any kernel, never asked in vain."""

import json
from collections.abc import Iterator
from math import isnan

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.training import Event
from rolloutlab.errors import NotFoundError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import SubmittedJob
from rolloutlab.store.scorings import NewScoring

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


def by_place(trajectory, answer, messages, row):
    """1.5 on average, and 2.5 once the model is trained."""
    return 2.5 if trajectory.step else int(trajectory.name[-1])


@pytest.fixture
def scored(session):
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", by_place)
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
    paths = [f"/v1/preview/training-jobs/{job.id}" for job in jobs]
    assert sorted(asked) == sorted([*paths, *(f"{path}/events" for path in paths)])


def test_a_job_shows_the_reward_it_trained_on_and_that_of_what_it_made(scored, asked):
    job = scored.train("capitals", {"learning_rate": 2e-3}, say=quiet)
    before = scored.jobs().loc[job.id[:8]]
    assert before["reward"] == 1.5
    assert before.isna()["reward_after"]
    assert (before["groups"], before["trains"], before["steps"]) == (1, 1, 1)
    assert before["seconds"] > 0
    scored.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=2)
    scored.reward("capitals", by_place)
    assert scored.jobs().loc[job.id[:8], "reward_after"] == 2.5
    scored.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=3)
    assert scored.jobs().loc[job.id[:8], "reward_after"] == 2.5
    assert "1.50 → 2.50" in repr(scored.jobs())
    assert ">+1.00<" in scored.jobs()._repr_html_()


@pytest.mark.parametrize(
    ("prompt", "settings", "otherwise"),
    [
        ("Capital of Peru?", {"max_tokens": 6}, "max_tokens=4"),
        ("Capital of Peru?", {"temperature": 0.5}, "temperature=1"),
        ("Capital of Peru?", {"top_p": 0.5}, "top_p=1"),
        ("Capital of Chad?", {}, "another prompt"),
        ("Capital of Peru?", {"n": 2}, ""),
    ],
)
def test_what_was_sampled_otherwise_is_no_result_of_the_job(scored, prompt, settings, otherwise):
    job = scored.train("capitals", {"learning_rate": 2e-3}, say=quiet)
    scored.chat("capitals", prompt, **{"n": 4, "max_tokens": 4, "seed": 2, **settings})
    scored.reward("capitals", by_place)
    after = scored.jobs().loc[job.id[:8], "reward_after"]
    assert after == 2.5 if not otherwise else isnan(after)
    assert "capitals:1 had 1.5" + f" with {otherwise}" * bool(otherwise) in repr(scored.collection("capitals"))


def test_a_job_keeps_the_reward_that_it_trained_on_whatever_is_scored_anew(scored):
    job = scored.train("capitals", {"learning_rate": 2e-3}, say=quiet)
    scored.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=2)
    scored.reward("capitals", by_place)
    assert tuple(scored.jobs().loc[job.id[:8], ["reward", "reward_after"]]) == (1.5, 2.5)
    assert "have changed since this job" not in scored.job(job.id)._repr_html_()
    scored.reward("capitals:1", lambda trajectory: 0.25)
    reward, after = scored.jobs().loc[job.id[:8], ["reward", "reward_after"]]
    assert reward == 1.5
    assert isnan(after)
    shown = scored.job(job.id)._repr_html_()
    assert "Rewards of capitals:1 have changed since this job." in shown
    assert "1.5 " in shown


def test_a_comparison_is_suggested_with_the_reward_of_the_cell_that_scored(scored, service, tmp_path):
    stored, job = scored.store.find("capitals"), scored.train("capitals", {"learning_rate": 2e-3}, say=quiet)
    later = Session(Settings(home=tmp_path, service=service.address), http=service.http)
    body = "return 0.5 * len(answer)"
    for given, suggested in (
        (NewScoring("function", ("cell",), body, {}), True),
        (NewScoring("judge", ("judge",), body, {}), False),
        (NewScoring("function", ("cell", "other"), f"{body}\n\ndef other(answer): return 1", {}), False),
    ):
        scored.store.scorings.begin(stored, given)
        assert (body in later.job(job.id)._repr_html_()) == suggested
    later.close()


def test_what_another_function_scored_is_no_result_of_the_job(scored):
    job = scored.train("capitals", {"learning_rate": 2e-3}, say=quiet)
    scored.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=2)
    assert "capitals:1 had 1.5" in repr(scored.collection("capitals")).splitlines()
    scored.reward("capitals", lambda trajectory, answer, messages, row: 2.5)
    assert scored.jobs().isna().loc[job.id[:8], "reward_after"]
    assert "capitals:1 had 1.5 with another reward" in repr(scored.collection("capitals"))


def test_the_next_generation_of_the_same_checkpoint_is_no_result_of_the_job(scored, service):
    service.jobs.close()
    job = scored.train("capitals", wait=False, say=quiet)
    scored.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=2)
    scored.reward("capitals", by_place)
    assert scored.jobs().isna().loc[job.id[:8], "reward_after"]


def test_a_row_says_which_options_differ_from_the_job_before_of_its_model(scored):
    for options in ({"learning_rate": 2e-3}, {"learning_rate": 2e-3}, {"epsilon": 0.3}):
        scored.train("capitals", options, wait=False, say=quiet)
    lines = [line.strip() for line in repr(scored.jobs()).splitlines()]
    assert [line for line in lines if line.startswith(("learning_rate", "epsilon"))] == [
        "epsilon 0.3, learning_rate default",
        "learning_rate 0.002",
    ]


def test_a_job_that_failed_says_why_in_its_row_also_where_it_was_not_followed(scored, service):
    job = scored.train("capitals", {"learning_rate": 1e30}, wait=False, say=quiet)
    service.ended(job.id)
    table = scored.jobs()
    assert table["status"].tolist() == ["failed"]
    assert "a lower learning_rate" in job.events()[-1].data["error_message"]
    assert job.events()[-1].data["error_message"][:60] in repr(table)
    assert f"%job {job.id[:8]}" in table._repr_html_()


def test_events_that_cannot_be_read_take_no_other_job_out_of_the_list(scored, monkeypatch):
    odd, damaged, whole = (scored.train("capitals", say=quiet) for _ in range(3))
    jobs = scored.store.jobs
    jobs.keep_events(odd.id, [Event(id="1", type="gradient_step", data={"reward": [1], "loss": None})])
    events = type(jobs).events

    def read(self, job_id):
        return events(self, job_id) if job_id != damaged.id else json.loads("[{")

    monkeypatch.setattr(type(jobs), "events", read)
    lines = repr(scored.jobs()).splitlines()
    (place,) = (i for i, line in enumerate(lines) if damaged.id[:8] in line)
    assert "its events cannot be read" in lines[place + 1]
    assert sum("cannot be read" in line for line in lines) == 1
    assert all(any(job.id[:8] in line for line in lines) for job in (odd, whole))


def test_the_newest_are_shown_and_the_line_says_what_lists_all(session):
    for n in range(25):
        session.store.jobs.add(submitted(f"{n:08}"))
    shown = repr(session.jobs())
    assert "20 of 25, newest first" in shown
    assert "00000024" in shown
    assert "00000004" not in shown
    assert shown.endswith("-> %jobs -n 25")
    assert "00000004" in repr(session.jobs(25))
    assert max(map(len, shown.splitlines())) <= 100


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


def test_a_job_is_found_by_the_checkpoint_that_it_made(scored, service):
    made = [scored.train("capitals", say=quiet) for _ in range(2)]
    assert scored.job("@1").id == scored.job("lab/practice@1").id == made[0].id
    assert scored.job("lab/practice@2").id == made[1].id
    with pytest.raises(NotFoundError, match="no job of this lab made lab/practice@3"):
        scored.job("@3")


def test_a_number_is_no_id_of_a_job(scored):
    job = scored.train("capitals", say=quiet)
    with pytest.raises(NotFoundError) as short:
        scored.job(job.id[:1])
    assert f"({job.id[:8]} made lab/practice@1)" in short.value.message
    assert short.value.hint == f"%job {job.id[:8]}"


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
    models = scored.models.list()
    assert models.columns.tolist() == ["base", "newest", "checkpoints", "made_from"]
    assert models.pop("made_from").isna().all()
    assert models.loc["lab/practice"].tolist() == ["tiny", 1, 2]
    assert models.loc["lab/other"].tolist() == ["tiny", 0, 1]
    assert models.loc["tiny"].isna().all()


def test_the_selected_model_is_marked_and_has_the_reward_of_what_it_sampled(scored, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    scored.train("capitals", say=quiet)
    scored.model("lab/other")
    scored.model("lab/practice")
    lines = {line.split()[0]: line.split() for line in repr(scored.models.list()).splitlines()[2:]}
    assert lines["lab/practice"][:7] == ["lab/practice", "selected", "@1", "1.50", "@0", "capitals", "tiny"]
    assert lines["lab/other"] == ["lab/other", "@0", "tiny"]
    assert lines["tiny"] == ["tiny"]
    html = scored.models.list()._repr_html_()
    assert "NA" not in html
    assert html.count(">selected<") == 1


def test_of_a_service_that_only_names_its_models_the_names_are_listed(session, service, monkeypatch):
    async def answer(*_, **__):
        return {"object": "list", "data": [{"id": "big", "object": "model", "created": 1, "owned_by": "someone"}]}

    monkeypatch.setattr(service.http, "request", answer)
    assert session.models.list().index.tolist() == ["big"]
    assert session.models.list().isna().all(axis=None)
