"""The price of training: the dry run against what the job trains on, and budgets before anything is submitted."""

import re
from fractions import Fraction

import httpx
import pytest

from rolloutlab.api.budget import Budget
from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import BudgetError, RolloutlabError
from rolloutlab.session import Session
from rolloutlab.settings import Price, Settings
from tests.labs import lab_with
from tests.paid import MODEL, URL, Paid


@pytest.fixture
def session(service, tmp_path):
    prices = {"lab/practice": Price(10.0, 20.0, 1000.0)}
    session = Session(Settings(home=tmp_path, service=service.address, prices=prices), http=service.http)
    yield session
    session.close()


@pytest.fixture
def scored(notebook):
    notebook.run("%%chat capitals -n 4 --seed 1 --max-tokens 4 --over countries\nuser: {{country}}")
    notebook.run("%%reward capitals\nreturn float(trajectory.name.endswith(('/0', '/1')))")
    return notebook


def dollars(text: str) -> Fraction:
    return Fraction(re.search(r"^cost: \$([\d.]+) for [\d,]+ trained tokens", text, re.MULTILINE)[1])


def test_a_dry_run_costs_what_the_job_trains_on(scored, capsys):
    preview = repr(scored.run("%%train capitals --dry-run"))
    capsys.readouterr()
    job = scored.run("%%train capitals")
    trained = int(job.metrics()["row_tokens"].sum())
    assert trained > 0
    assert dollars(preview) == dollars(capsys.readouterr().out) == Fraction(trained, 1000)
    spent = scored.lab.store._database.read("SELECT amount, trained_tokens FROM spending WHERE purpose = 'training'")
    assert [tuple(row) for row in spent] == [(trained * 10**9, trained)]


def test_a_dry_run_of_fine_tuning_costs_what_the_job_trains_on(scored, capsys):
    preview = repr(scored.run("%%train capitals --sft --dry-run"))
    capsys.readouterr()
    job = scored.run("%%train capitals --sft --budget 10")
    assert (
        dollars(preview) == dollars(capsys.readouterr().out) == Fraction(int(job.metrics()["row_tokens"].sum()), 1000)
    )


@pytest.mark.parametrize("cell", ["%%train capitals --budget 0.001", "%%train capitals --sft --budget 0.001"])
def test_a_job_that_costs_more_than_the_budget_is_not_submitted(scored, cell):
    before = len(scored.lab.jobs())
    shown = scored.error(cell)
    assert re.match(
        r"BudgetError: training on \d+ tokens costs \$0\.\d+, and \$0\.00 of a budget of \$0\.00100 is spent; "
        r"no job was submitted\n  -> a larger --budget, or less data$",
        shown,
    )
    assert len(scored.lab.jobs()) == before


def test_a_form_keeps_the_budget_of_its_cell(scored):
    form = scored.run("%%train capitals --form --budget 0.001")
    assert form.cell.startswith("%%train capitals --budget 0.001")
    with pytest.raises(BudgetError, match=r"of a budget of \$0\.00100 is spent; no job was submitted"):
        form.submit()
    assert "is a number of dollars" in scored.error("%%train capitals --form --budget -1")


def test_a_budget_needs_a_price_to_train(scored):
    scored.lab.settings = Settings(
        home=scored.lab.settings.home,
        service=scored.lab.settings.service,
        prices={"lab/practice": Price(10.0, 20.0)},
    )
    shown = scored.error("%%train capitals --budget 1")
    assert "InputError: a budget needs the price of lab/practice" in shown
    assert '-> [prices."lab/practice"] with prompt, completion and train, in the settings file' in shown
    assert "cost" not in repr(scored.run("%%train capitals --dry-run"))


@pytest.mark.parametrize(
    ("answer", "charged"),
    [
        (httpx.Response(422, json={"detail": "no"}), False),
        (httpx.ConnectError("nothing listens"), False),
        (httpx.ReadTimeout("late"), True),
        (httpx.Response(500, text="broken"), True),
    ],
)
def test_a_job_is_charged_unless_it_has_certainly_not_arrived(tmp_path, answer, charged):
    async def respond(request):
        if request.url.path.endswith("/training-jobs") and request.headers.get("Idempotency-Key"):
            await request.aread()
            if isinstance(answer, Exception):
                raise answer
            return answer
        return await Paid()(request)

    model = MODEL["id"]
    http = HttpClient(httpx.MockTransport(respond), backoff=0)
    session = Session(Settings(home=tmp_path, prices={model: Price(1.0, 1.0, 1000.0)}), http=http)
    session.connect(URL)
    session.model(model)
    lab_with(session.store, ["yes", "no"], rewards=[1.0, 0.0], model=model)
    with pytest.raises(RolloutlabError):
        session.train("capitals", say=lambda _: None, budget=1)
    assert session.store.spending.at(URL) == (4 * 10**9 if charged else 0)
    assert bool(len(session.jobs())) == charged
    session.close()
    http.close()


def test_the_form_names_what_its_job_costs(scored):
    form = scored.lab.train_form("capitals")
    job = form.submit()
    job.wait()
    trained = Fraction(int(job.metrics()["row_tokens"].sum()), 1000)
    assert dollars(repr(form)) == dollars(repr(form.check())) == trained


def test_several_calls_share_one_budget(scored):
    budget = Budget(0.07)
    for _ in range(2):
        scored.lab.train("capitals", say=lambda _: None, budget=budget)
    with pytest.raises(BudgetError, match=r"and \$0\.0\d+ of a budget of \$0\.0700 is spent; no job was submitted"):
        scored.lab.train("capitals", say=lambda _: None, budget=budget)
    assert 0 < budget.spent <= budget.limit
    assert len(scored.lab.jobs()) == 2
