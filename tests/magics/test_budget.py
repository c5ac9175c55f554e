"""Prices and budgets of cells, against what a service that counts has charged."""

import asyncio
import json
import re
from fractions import Fraction

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.prices import bound, cost
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import BudgetError, InputError, ServiceError
from rolloutlab.session import Session
from rolloutlab.settings import Address, ModelSettings, Price, Settings, read_settings
from tests.labs import lab_with
from tests.paid import LISTED, URL, spent

PRICES = """
[profiles.paid]
url = "https://paid.example"
{budget}
[profiles.paid.prices."team/small"]
prompt = 100
completion = 200
train = 400
"""
ROWS = [{"word": f"w{i}"} for i in range(40)]


@pytest.fixture
def opened(tmp_path, at_paid):
    """Makes a session at the service, with a budget of its profile; each over the same lab."""

    def make(budget: float | None = None, text: str = PRICES) -> Session:
        file = tmp_path / "settings.toml"
        file.write_text(text.format(budget="" if budget is None else f"budget = {budget}"))
        variables = {"ROLLOUTLAB_SETTINGS": str(file), "ROLLOUTLAB_PROFILE": "paid", "ROLLOUTLAB_HOME": str(tmp_path)}
        return at_paid(read_settings(variables))

    return make


@pytest.fixture
def session(opened):
    return opened()


CHAT = "%%chat words -m team/small -n 2 --max-tokens 100"


def test_a_cell_ends_before_its_budget_is_exceeded_and_resume_samples_the_rest(notebook, paid):
    notebook.shell.user_ns["rows"] = ROWS
    shown = notebook.error(f"{CHAT} --over rows --budget 1\nuser: Say {{{{word}}}}")
    each = Fraction(2 * 100 + 200 * 200, 10**6)  # of a request: two words, two completions of 100 tokens
    done = len(paid.bodies)
    assert paid.charged == done * each <= 1
    most = Fraction(1024 + 40, 10**4) + Fraction(4, 100)  # the bound of a prompt is some forty bytes
    assert paid.charged + 2 * most > 1
    assert re.fullmatch(
        rf"BudgetError: the next request may cost \$0\.14\d, and \$0\.\d+ of a budget of \$1\.00 is spent; "
        rf"{2 * done} of 80 completions had arrived and are kept, {80 - 2 * done} are not sampled yet\n"
        r"  -> %%chat words:1 --resume --budget 1",
        shown,
    )
    assert len(notebook.lab.collection("words").trajectories) == 2 * done
    notebook.run("%%chat words --resume --budget 10")
    assert len(notebook.lab.collection("words").trajectories) == 80
    assert paid.charged == 40 * each == spent(notebook.lab)


def test_the_hint_of_a_program_after_its_budget_can_be_typed(notebook):
    notebook.shell.user_ns |= {"rows": ROWS, "lab": notebook.lab}
    options = "-m team/small --max-tokens 100 --concurrency 1"
    cell = "await client.chat.completions.create(messages=[{'role': 'user', 'content': row['word']}])"
    shown = notebook.error(f"%%rollout agent {options} --over rows --budget 0.3\n{cell}")
    assert shown.endswith("  -> %%rollout agent:1 --resume --budget 0.3, with its cell")
    notebook.run(f"%%rollout agent:1 --resume --budget 3\n{cell}")
    assert len(notebook.lab.collection("agent").trajectories) == 40
    notebook.run(f"async def solve(row, client):\n    {cell}")
    shown = notebook.error(f"%%rollout named {options} --over rows --budget 0.3 --with solve\n")
    message, hint = shown.split("\n  -> ")
    assert hint == "lab.resume('named:1', program=solve, budget=0.3)"
    assert "is spent" in message
    assert "BudgetError" in notebook.error(hint.replace("0.3", "0.2"))
    notebook.run(hint.replace("0.3", "3"))
    assert len(notebook.lab.collection("named").trajectories) == 40


def test_a_budget_that_is_too_small_for_one_request_sends_none(notebook, paid):
    shown = notebook.error(f"{CHAT} --budget 0.01\nuser: Say so")
    assert shown.endswith(
        "$0.00 of a budget of $0.0100 is spent; nothing was sampled\n  -> a larger --budget, or a smaller --max-tokens"
    )
    assert paid.bodies == []
    assert notebook.lab.store.collections() == []


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("-m team/other --max-tokens 9", "a budget needs the price of team/other, in dollars per million tokens",
         '[prices."team/other"] with prompt and completion, in '),
        ("-m team/small", "a budget needs the most tokens of a completion", "--max-tokens 512"),
        ("-m team/small --max-tokens 9 --budget -2", "a budget is a number of dollars from 0 to 100,000, not -2.0",
         "--budget 2.50"),
        ("-m team/small --max-tokens 9 --budget nan", "a budget is a number of dollars from 0 to 100,000, not nan",
         "--budget 2.50"),
    ],
)  # fmt: skip
def test_a_budget_needs_a_price_and_a_bound(notebook, paid, line, error, hint):
    shown = notebook.error(f"%%chat words {line if '--budget' in line else f'{line} --budget 1'}\nuser: Say so")
    assert error in shown
    assert hint in shown
    assert paid.bodies == []


def test_a_cell_shows_what_it_has_cost_and_the_lab_keeps_it(notebook, paid, capsys):
    notebook.run(f"{CHAT}\nuser: Say so")
    assert "cost: $0.0402 for 2 + 200 tokens of team/small" in capsys.readouterr().out
    assert spent(notebook.lab) == paid.charged


def test_without_a_price_nothing_is_recorded_and_nothing_is_shown(notebook, paid, capsys):
    notebook.run("%%chat words -m team/other --max-tokens 9\nuser: Say so")
    assert "cost" not in capsys.readouterr().out
    assert notebook.lab.store._database.read("SELECT * FROM spending") == []
    assert "cost" not in repr(notebook.run("%%chat words -m team/other --max-tokens 9 --dry-run\nuser: Say so"))


def test_a_budget_of_a_profile_holds_over_cells_and_restarts(opened, paid):
    session = opened(budget=0.5)
    for i in range(3):
        session.chat("words", f"Say {i}", model="team/small", n=2, max_tokens=100)
    session.close()
    session = opened(budget=0.5)
    with pytest.raises(BudgetError, match=r"of a budget of \$0\.500 at https://paid\.example is spent") as caught:
        session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    assert caught.value.hint.startswith("a larger budget in ")
    assert "%%chat words:4 --resume" in caught.value.hint
    assert paid.charged == spent(session) <= Fraction(1, 2)
    assert len(paid.bodies) > 5
    session = opened(budget=5)
    session.resume("words")
    assert len(session.collection("words").trajectories) == 80
    assert paid.charged == spent(session)


@pytest.mark.parametrize("url", ["https://Paid.Example", "HTTPS://paid.example:443/", "https://paid.example./v1"])
def test_another_spelling_of_the_url_has_the_same_budget(opened, paid, url):
    opened(budget=0.18).chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    again = opened(budget=0.18, text=PRICES.replace("https://paid.example", url))
    with pytest.raises(BudgetError, match=r"\$0\.0402 of a budget of \$0\.180 at https://paid\.example is spent"):
        again.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    assert len(paid.bodies) == 1


def test_the_largest_prices_and_budgets_are_counted(opened, paid, capsys):
    text = PRICES.replace("= 100\n", "= 100000\n").replace("= 200\n", "= 100000\n")
    session = opened(budget=1e5, text=text)
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100, budget=1e5)
    assert "cost: $20.20 for 2 + 200 tokens" in capsys.readouterr().out


def test_both_budgets_hold(opened, paid):
    session = opened(budget=0.5)
    with pytest.raises(BudgetError, match=r"of a budget of \$0\.300 is spent") as caught:
        session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100, budget=0.3)
    assert caught.value.hint == "%%chat words:1 --resume --budget 0.3"
    with pytest.raises(BudgetError, match=r"of a budget of \$0\.500 at https://paid\.example is spent") as caught:
        session.resume("words", budget=1)
    assert "a larger budget in" in caught.value.hint
    assert paid.charged <= Fraction(1, 2)


def many_fail(number):
    """Each way in which a request fails after its work may have been charged, in turn."""
    kinds = {
        1: httpx.Response(500, text="broken"),
        2: httpx.ReadTimeout("late"),
        3: httpx.Response(200, text="no JSON"),
        4: httpx.Response(503, text="busy"),
        5: httpx.Response(408, text="late"),
    }
    return kinds.get(number % 9)


@pytest.mark.parametrize("limit", [0.4, 1.0, 3.0])
def test_64_requests_at_once_that_fail_and_are_retried_never_charge_more_than_the_budget(opened, paid, limit):
    paid.fails, paid.gate = many_fail, asyncio.Event()
    paid.sampled = lambda body: len(paid.bodies) % body["max_tokens"]

    async def complete(body):
        if paid.under_way >= 3 or len(paid.bodies) > 10:
            paid.gate.set()
        return await answered(body)

    answered, paid._complete = paid._complete, complete
    session = opened(budget=limit)
    with pytest.raises(BudgetError):
        session.chat("words", "Say {{word}}", model="team/small", over=ROWS * 20, max_tokens=100, concurrency=64)
    assert paid.charged <= spent(session) <= limit
    assert paid.most >= 3


def test_requests_wait_for_those_under_way_and_more_are_sent_than_the_budget_has_worst_cases(notebook, paid):
    paid.sampled = lambda _: 1  # of at most 1000
    notebook.shell.user_ns["rows"] = ROWS
    notebook.run("%%chat words -m team/small --max-tokens 1000 --over rows --budget 1\nuser: Say {{word}}")
    assert len(paid.bodies) == 40
    assert paid.most <= 3  # three worst cases of $0.31 fit at once


def test_a_request_that_was_refused_or_never_sent_costs_nothing(opened, paid):
    refusals = {1: httpx.Response(429, headers={"Retry-After": "0"}), 2: httpx.ConnectError("nothing listens")}
    paid.fails = refusals.get
    session = opened(budget=0.35)  # two worst cases
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    assert len(paid.bodies) == 3
    assert spent(session) == Fraction(402, 10**4)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "many",
        [],
        {},
        {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": 2, "total_tokens": 202},
        {"prompt_tokens": 2.5, "completion_tokens": 200, "total_tokens": 202},
        {"prompt_tokens": -2, "completion_tokens": 200, "total_tokens": 198},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"input_tokens": 2, "output_tokens": 200},
    ],
)
def test_a_service_that_reports_no_usage_is_paid_the_bound(opened, paid, usage, capsys):
    paid.usage = lambda _: usage
    session = opened(budget=1)
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    assert Fraction(14, 100) < spent(session) < Fraction(16, 100)  # 1,024 and some bytes; 200 tokens
    assert paid.charged < spent(session)
    assert session.collections()["cost ($)"].iloc[0] == pytest.approx(float(spent(session)))
    assert re.search(
        r"cost: at most \$0\.14\d for 1,\d+ \+ 200 tokens of team/small: "
        "1 request without usage or a response count as the most they could cost",
        capsys.readouterr().out,
    )


def test_without_a_budget_and_without_usage_the_cost_is_not_known(session, paid, capsys):
    paid.usage = lambda _: None
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    shown = "cost: $0.00 for 0 + 0 tokens of team/small, and 1 request without usage, whose cost is not known"
    assert shown in capsys.readouterr().out
    assert "cost ($)" not in session.collections().columns


def streamed(*texts: str, usage: bool = True) -> httpx.Response:
    """A stream of chunks, the last with the usage that a service reports."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "team/small"}
    chunks = [{**head, "choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    if usage:
        chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        chunks.append({**head, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5}})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=text)


def test_a_streamed_completion_costs_what_its_usage_counts(opened, paid):
    paid.fails = lambda _: streamed("two ", "words")
    session = opened(budget=1)
    session.chat("words", "Say so", model="team/small", max_tokens=100)
    assert paid.bodies[0]["stream_options"] == {"include_usage": True}
    assert spent(session) == Fraction(2 * 100 + 5 * 200, 10**6)


def test_a_stream_that_breaks_off_costs_the_most_it_could(opened, paid, capsys):
    paid.fails = lambda _: streamed("two ", usage=False)
    session = opened(budget=1)
    with pytest.raises(ServiceError, match="broke off before its end"):
        session.chat("words", "Say so", model="team/small", max_tokens=100)
    assert paid.charged < spent(session) < Fraction(14, 100)
    shown = capsys.readouterr().out
    assert re.search(r"^cost: at most \$0\.12\d for 1,\d+ \+ 100 tokens of team/small: 1 request", shown, re.MULTILINE)
    assert re.search(r"^spent at https://paid.example in all: \$0\.12\d of a budget of \$1\.00$", shown, re.MULTILINE)


def test_two_kernels_never_spend_more_than_the_budget_of_a_profile_together(opened, paid):
    one, other = opened(budget=0.6), opened(budget=0.6)
    over = 0
    for i in range(20):
        try:
            (one, other)[i % 2].chat("words", f"Say {i}", model="team/small", n=2, max_tokens=100)
        except BudgetError:
            over += 1
    assert over
    assert spent(one) == spent(other) == paid.charged <= Fraction(6, 10)
    assert len(paid.bodies) == 20 - over == 12  # while $0.15 of $0.60 fit after $0.0402 each


def test_odd_fields_of_usage_are_no_error(opened, paid):
    paid.usage = lambda usage: {
        **usage,
        "total_tokens": None,
        "prompt_tokens_details": {"cached_tokens": 1},
        "cost": "?",
    }
    session = opened(budget=1)
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    assert spent(session) == paid.charged


def test_a_service_whose_counts_exceed_every_bound_gets_nothing_more(opened, paid):
    paid.usage = lambda usage: {**usage, "completion_tokens": 5000}
    session = opened(budget=50)
    with pytest.raises(
        BudgetError, match=r"the service counted 2 \+ 5,000 tokens of a request of at most .* no budget"
    ):
        session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100, concurrency=1)
    assert len(paid.bodies) == 1
    assert len(session.collection("words").trajectories) == 2


def test_an_interrupt_counts_what_was_under_way_at_its_worst(opened, paid, monkeypatch, capsys):
    session = opened(budget=10)
    paid.fails = lambda number: paid.gate.clear() if number == 2 else None  # the third waits forever
    paid.gate = asyncio.Event()
    paid.gate.set()

    def interrupt():
        if len(paid.bodies) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(session._brokers, "tick", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100, concurrency=1)
    assert len(session.collection("words").trajectories) == 4
    assert paid.charged < spent(session) < paid.charged + Fraction(16, 100)
    assert "cost: at most $0.2" in capsys.readouterr().out


def test_an_interrupt_while_it_is_tried_what_a_service_refuses_counts_that_request(opened, paid, monkeypatch):
    session = opened(budget=10)
    paid.gate = asyncio.Event()
    paid.gate.set()

    def refused(number):
        paid.gate.clear()  # the next request, which leaves fields out, waits forever
        return httpx.Response(400)

    def interrupt():
        if len(paid.bodies) == 2:
            raise KeyboardInterrupt

    paid.fails = refused
    monkeypatch.setattr(session._brokers, "tick", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    assert paid.under_way == 0
    [_, tried] = map(ChatRequest.model_validate, paid.bodies)
    assert spent(session) == Fraction(cost(session.settings.service.prices["team/small"], bound(tried)), 10**12)


def test_a_dry_run_bounds_the_cost_and_estimates_it_by_earlier_completions(notebook, paid):
    paid.sampled = lambda _: 30
    notebook.shell.user_ns["rows"] = ROWS
    cell = f"{CHAT} --over rows\nuser: Say {{{{word}}}}"
    first = repr(notebook.run(cell.replace("\n", " --dry-run\n", 1)))
    assert paid.bodies == []
    assert re.search(r"^cost: at most \$\d+\.\d\d without retries \(max_tokens\)$", first, re.MULTILINE)
    notebook.run(cell)
    actual = paid.charged
    most = Fraction(re.search(r"at most \$([\d.]+)", first)[1])
    assert actual <= most
    second = repr(notebook.run(cell.replace("\n", " --dry-run\n", 1)))
    about = Fraction(re.search(r", about \$([\d.]+) as words$", second, re.MULTILINE)[1])
    assert abs(about - actual) <= actual / 100  # three digits
    notebook.run("%%chat words --resume")  # nothing is left
    assert paid.charged == actual


def test_trials_of_a_service_that_refuses_without_a_word_are_below_the_bound(notebook, paid, capsys):
    answered = paid._complete

    async def complete(body):
        return httpx.Response(400) if body.get("logprobs") else await answered(body)

    paid._complete = complete
    cell = "%%chat words -m team/small --max-tokens 1{}\nuser: " + "a " * 2000
    first = repr(notebook.run(cell.format(" --dry-run")))
    notebook.run(cell.format(""))
    assert len(paid.bodies) == 3  # two trials were taken
    assert paid.charged <= Fraction(re.search(r"at most \$([\d.]+)", first)[1])
    assert paid.charged < Fraction(2100, 10**4)  # one prompt of 2,000 words
    second = repr(notebook.run(cell.format(" --dry-run")))
    less = Fraction(re.search(r"at most \$([\d.]+)", first)[1]) - Fraction(re.search(r"most \$([\d.]+)", second)[1])
    assert less > Fraction(4 * 1024, 10**4)  # what can be tried was tried


def test_a_dry_run_of_what_is_left_is_about_as_much_as_what_was_sampled(notebook, paid):
    notebook.shell.user_ns["rows"] = ROWS
    notebook.error(f"{CHAT} --over rows --budget 1\nuser: Say {{{{word}}}}")
    before = paid.charged
    preview = repr(notebook.run("%%chat words --resume --dry-run"))
    about = Fraction(re.search(r"about \$([\d.]+) as words", preview)[1])
    notebook.run("%%chat words --resume")
    assert abs((paid.charged - before) - about) <= about / 100


def test_a_dry_run_of_several_turns_bounds_the_answers_in_later_prompts(notebook, paid):
    paid.answer = lambda body: "word " * body["max_tokens"]
    turns = "user: a b\n\nassistant:\n\nuser: c d\n\nassistant:\n\nuser: e"
    cell = "%%chat talk -m team/small -n 3 --max-tokens 50{}\n" + turns
    preview = repr(notebook.run(cell.format(" --dry-run")))
    notebook.run(cell.format(""))
    assert len(paid.bodies) == 7  # one for the first answers, then one for each conversation
    assert paid.charged <= Fraction(re.search(r"at most \$([\d.]+)", preview)[1])


def test_a_dry_run_without_a_bound_gives_the_reason(notebook):
    assert "cost: no bound: no most tokens of a completion -> --max-tokens 512" in repr(
        notebook.run("%%chat words -m team/small --dry-run\nuser: Say so")
    )
    notebook.run("def find(word: str) -> str:\n    'Find it.'\n    return word")
    assert "cost: no bound: results of tools may be of any length\n" in repr(
        notebook.run("%%chat words -m team/small --max-tokens 9 --tools find --dry-run\nuser: Say so")
    )


def test_connect_shows_the_budget_of_the_service(notebook, opened):
    session = opened(budget=20)
    assert re.search(r"^  budget +\$20\.00, of which \$0\.00 is spent$", repr(session.connect()), re.MULTILINE)
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    assert re.search(r"^  budget +\$20\.00, of which \$0\.0402 is spent$", repr(session.connect()), re.MULTILINE)
    assert " $0.00400, of which" in repr(opened(budget=0.004).connect())
    assert not re.search(r"^  budget", repr(notebook.run("%connect")), re.MULTILINE)


@pytest.mark.parametrize("fit", [1, 10, 64])
def test_as_many_requests_are_under_way_as_have_worst_cases_that_fit(opened, paid, fit):
    message = {"role": "user", "content": "Say w10"}
    request = ChatRequest.model_validate({"model": "team/small", "messages": [message], "max_tokens": 100})
    paid.gate, paid.sampled = asyncio.Event(), lambda _: 1
    answered = paid._complete

    async def complete(body):
        if paid.under_way == fit:
            paid.gate.set()  # none is answered before so many are there
        return await answered(body)

    paid._complete = complete
    worst = cost(Price(100.0, 200.0), bound(request))
    rows = [{"word": f"w{i}"} for i in range(10, 100)]
    budget = (fit * worst + worst // 2) / 10**12
    session = opened()
    session.chat("words", "Say {{word}}", model="team/small", over=rows, max_tokens=100, budget=budget, concurrency=64)
    assert paid.most == fit
    assert len(paid.bodies) == 90
    assert spent(session) == paid.charged


def test_where_no_budget_can_hold_the_cell_says_what_is_spent_and_goes_on_without_one(notebook, paid):
    notebook.shell.user_ns["rows"] = ROWS
    paid.sampled = lambda body: 3 * body["max_tokens"]
    shown = notebook.error(f"{CHAT} --over rows --concurrency 1 --budget 5\nuser: Say {{{{word}}}}")
    assert re.search(r"here no budget can hold; \$0\.\d+ is spent; \d+ of 80 completions had arrived", shown)
    assert shown.endswith("-> %%chat words:1 --resume, without a budget")
    notebook.run("%%chat words:1 --resume")
    assert len(notebook.lab.collection("words").trajectories) == 80


def test_where_the_budget_of_a_profile_cannot_hold_the_error_says_what_was_charged_and_names_it(opened, paid):
    session = opened(budget=50)
    paid.sampled = lambda body: 3 * body["max_tokens"]
    with pytest.raises(BudgetError, match=r"here no budget can hold; \$0\.0302 is spent; ") as caught:
        session.chat("words", "Say {{word}}", model="team/small", over=ROWS, max_tokens=50, concurrency=1)
    assert paid.charged == Fraction(302, 10**4)
    file = session.settings.file
    assert caught.value.hint == f"no budget in [profiles.paid] of {file}, then %%chat words:1 --resume"
    with pytest.raises(BudgetError) as caught:
        session.resume("words", budget=5)
    assert caught.value.hint.endswith("then %%chat words:1 --resume without --budget")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_budget_is_refused_where_a_tinker_server_charges_for_more_than_is_counted(tmp_path, elsewhere):
    async def answer(request):
        if request.url.path == "/v1/models":
            return httpx.Response(
                200, json={"object": "list", "data": [{**LISTED["data"][0], "owned_by": "rolloutlab"}]}
            )
        return httpx.Response(200, json={"name": "tinker"})

    prices = {"team/small": Price(100.0, 200.0, 1000.0)}
    service = Address(URL, f"{URL}/v1") if elsewhere else None
    model = ModelSettings() if elsewhere else ModelSettings(engine="tinker", engine_url="http://127.0.0.1:1")
    http = HttpClient(httpx.MockTransport(answer), backoff=0)
    session = Session(Settings(home=tmp_path, service=service, prices=prices, model=model), http=http)
    lab_with(session.store, ["yes", "no"], rewards=[1.0, 0.0], model="team/small")
    for call in (
        lambda: session.chat("words", "Say so", model="team/small", max_tokens=9, budget=1),
        lambda: session.judge("capitals", model="team/small", max_tokens=9, budget=1),
        lambda: session.reward("capitals", lambda answer: 1.0, budget=1),
        lambda: session.train("capitals", budget=1),
    ):
        with pytest.raises(InputError, match="no budget can hold on a Tinker server") as caught:
            call()
        assert caught.value.hint == "the cell again, without a budget"
    session.reward("capitals", lambda answer: 1.0, say=lambda _: None)
    session.close()
    http.close()


def test_a_top_up_is_of_a_budget_and_goes_on_with_another(notebook, paid):
    paid.logprobs = True
    notebook.shell.user_ns["rows"] = ROWS[:5]
    notebook.run(f"{CHAT} --over rows\nuser: Say {{{{word}}}}")
    notebook.run("%%reward words\nreturn 0.0")
    before = paid.charged
    shown = notebook.error("%%chat words --top-up --budget 0.2")
    assert 0 < paid.charged - before <= Fraction(2, 10)
    assert "of a budget of $0.200 is spent" in shown
    assert "-> %%chat words:1 --resume --budget 0.2" in shown
    notebook.run("%%chat words --top-up --budget 10")
    assert [len(group.trajectories) for group in notebook.lab.collection("words").groups] == [4] * 5
    assert paid.charged == spent(notebook.lab)
