"""Another service: asked before it is talked to, and the one before it stays when it does not answer."""

import json
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.redirect.route import FrontEndContext
from rolloutlab.settings import Address, Profile, Settings

CHAT = "%%chat capitals -n 2 --max-tokens 4\nhello"


@pytest.fixture(autouse=True)
def key(monkeypatch, service):
    """The key of the service, where `--key-env TRAIN_KEY` finds it."""
    monkeypatch.setenv("TRAIN_KEY", service.address.token)


@pytest.fixture
def with_profiles(session, notebook):
    """The notebook, whose settings file names the service in this process `hosted`, and one that is not there."""
    hosted = Profile("http://localhost", None, "TRAIN_KEY", "research/capitals")
    profiles = {"hosted": hosted, "gone": Profile("http://gone.example"), "keyless": Profile("http://localhost")}
    session.settings = replace(session.settings, profiles=profiles)
    return notebook


@pytest.fixture
def answered(session):
    """Puts an answer, or an error, in the place of every service."""

    def put(answer):
        def respond(request):
            if isinstance(answer, Exception):
                raise answer
            return answer

        session._connector.http = HttpClient(httpx.MockTransport(respond), backoff=0)

    yield put
    session._connector.http.close()


@pytest.fixture
def sent(session):
    """The requests that are sent; each is answered with what a model or an embedding may be."""
    requests = []

    def respond(request):
        requests.append(request)
        vectors = [
            {"index": i, "embedding": [1.0, 2.0]}
            for i in range(len(json.loads(request.content or "{}").get("input", [])))
        ]
        return httpx.Response(200, json={"data": vectors, "status": "ok"})

    session._connector.http = HttpClient(httpx.MockTransport(respond), backoff=0)
    yield requests
    session._connector.http.close()


@pytest.mark.parametrize(
    "cell",
    [
        "%connect http://train.example --key-env TRAIN_KEY",
        "%connect http://train.example --key-keyring",
        "%connect HTTP://10.0.0.5:8000 --key-env TRAIN_KEY",
        "%connect https://train.example --inference http://train.example --key-env TRAIN_KEY",
        "%connect --search http://chroma.example/capitals --key-env TRAIN_KEY",
        "%search --embed-with http://embed.example/v1 --model small --key-env TRAIN_KEY",
    ],
)
def test_a_key_is_never_sent_where_it_would_be_read_on_the_way(notebook, sent, cell):
    error = notebook.error(cell)
    assert "is not encrypted: a key could be read on the way" in error
    assert "--insecure-http" in error
    assert not [request for request in sent if request.url.scheme == "http"]


def test_a_key_of_the_environment_is_not_sent_unencrypted_either(notebook, session, sent):
    address = Address("http://train.example", "http://train.example/v1", "of-this-test", None, "ROLLOUTLAB_API_KEY")
    session.settings = replace(session.settings, service=address)
    assert "is not encrypted" in notebook.error(CHAT)
    assert not sent


@pytest.mark.parametrize(
    ("cell", "header"),
    [
        ("%connect http://10.0.0.5:8000 --key-env TRAIN_KEY --insecure-http", "Authorization"),
        (
            "%search --embed-with http://10.0.0.5:8000/v1 --model small --key-env TRAIN_KEY --insecure-http",
            "Authorization",
        ),
        ("%connect --search http://10.0.0.5:8000/capitals --key-env TRAIN_KEY --insecure-http", "x-chroma-token"),
    ],
)
def test_inside_ones_own_network_a_key_goes_unencrypted_where_a_person_says_so(notebook, sent, tmp_path, cell, header):
    with pytest.warns(UserWarning, match=r"keys go to http://10.0.0.5:8000 unencrypted"):
        result = notebook.shell.run_cell(cell)
    assert {request.headers[header].removeprefix("Bearer ") for request in sent} == {"of-this-test"}
    if header == "Authorization" and "--search" not in cell and "embed" not in cell:
        assert "TRAIN_KEY; sent unencrypted" in repr(result.result)
    assert not [file for file in tmp_path.rglob("*.toml") if "10.0.0.5" in file.read_text()]
    assert HttpClient().unencrypted._allowed == set()


@pytest.mark.parametrize(
    "host",
    [
        "93.184.216.34",
        "169.254.169.254",
        "[2001:4860:4860::8888]",
        "100.64.0.1",
        "192.0.2.7",
        "198.51.100.7",
        "[2001:db8::7]",
    ],
)
def test_outside_ones_own_network_not_even_then(notebook, sent, host):
    error = notebook.error(f"%connect http://{host} --key-env TRAIN_KEY --insecure-http")
    assert "is not in a private network" in error
    assert not sent


def test_a_name_is_in_ones_own_network_if_all_its_addresses_are(notebook, sent, monkeypatch):
    addresses = {"mine.internal": ["10.0.0.5", "fd00::5"], "mixed.internal": ["10.0.0.5", "192.0.2.7"]}
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, *_, **__: [(0, 0, 0, "", (address, 0)) for address in addresses[host]]
    )
    refusal = notebook.error("%connect http://mixed.internal --key-env TRAIN_KEY --insecure-http")
    assert "is not in a private network" in refusal
    assert not sent
    with pytest.warns(UserWarning, match=r"keys go to http://mine.internal:80 unencrypted"):
        notebook.run("%connect http://mine.internal --key-env TRAIN_KEY --insecure-http")
    assert sent


def test_a_key_that_was_not_named_goes_to_its_own_host_alone(notebook, sent, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    notebook.run("%search --embed-with https://anybody.example/v1 --model small")
    notebook.run("%search --embed-with https://api.openai.com.example/v1 --model small")
    assert sent
    assert not [request for request in sent if "Authorization" in request.headers]
    notebook.run("%search --embed-with https://api.openai.com/v1 --model small")
    assert sent[-1].headers["Authorization"] == "Bearer of-openai"


def test_without_an_argument_it_says_what_is_in_force_and_where_it_was_said(notebook, session):
    session.settings = replace(
        session.settings, project="research/capitals", origins={"home": "ROLLOUTLAB_HOME", "project": "/settings.toml"}
    )
    message = repr(notebook.run("%connect")).splitlines()
    assert message[0] == "http://127.0.0.1 answers: it samples and trains; 1 model by name"
    rows = [line.split() for line in message[1:-1]]
    assert [row[:2] for row in rows] == [
        ["service", "http://127.0.0.1"],
        ["inference", "http://127.0.0.1/v1"],
        ["key", "given"],
        ["project", "none"],
        ["lab", str(session.settings.home)],
        ["search", "the"],
    ]
    assert rows[-2][-1] == "(ROLLOUTLAB_HOME)"
    assert "of-this-test" not in repr(session.connect()) + session.connect()._repr_html_()


def test_the_embedded_service_is_described_without_starting_it(tmp_path, notebook, session):
    session.settings = Settings(home=tmp_path / "absent")
    session._connector.__dict__.pop("embedded", None)
    message = repr(notebook.run("%connect"))
    assert message.startswith("the embedded service is not running; it starts when it is needed\n  service    embedded")
    assert repr(notebook.run("%connect embedded --project a/b")).count("a/b") == 1
    assert not (tmp_path / "absent").exists()


def test_a_service_that_does_not_answer_is_described_as_such(notebook, answered):
    answered(httpx.ConnectTimeout(""))
    message = repr(notebook.run("%connect"))
    assert message.startswith("UnreachableError: nothing answers at http://127.0.0.1: the connection could not be made")


def test_an_address_is_talked_to_once_it_has_answered(notebook, session):
    result = notebook.run("%connect http://localhost/v1/ --key-env TRAIN_KEY --project research/capitals -o there")
    assert notebook["there"] is result
    assert repr(result).startswith("http://localhost answers: it samples and trains")
    assert "TRAIN_KEY" in repr(result)
    assert session.settings.service.base_url == "http://localhost"
    notebook.run(CHAT)
    assert session.store.collections()[0].trajectories == 2


def test_a_profile_brings_its_key_and_its_project(with_profiles, session):
    assert "research/capitals" in repr(with_profiles.run("%connect hosted"))
    assert session.settings.service.token == "of-this-test"
    assert session.settings.service.project == "research/capitals"
    assert session.connect("hosted", project="ada/mine").address.project == "ada/mine"


def test_chats_and_jobs_are_counted_under_the_project(with_profiles, service):
    def requests() -> Counter[str]:
        return Counter({use["project"]: use["requests"] for use in service.call("GET", "/v1/preview/usage")["data"]})

    before = requests()
    with_profiles.run("%connect hosted")
    with_profiles.run(CHAT)
    with_profiles.run("%connect --project ada/mine")
    with_profiles.run(CHAT)
    assert requests() - before == {"research/capitals": 1, "ada/mine": 1}


def test_every_request_names_the_project(notebook, session, service, monkeypatch):
    sent = []
    transport = service.http._transport
    respond = transport.handle_async_request

    async def seen(request):
        sent.append(request)
        return await respond(request)

    monkeypatch.setattr(transport, "handle_async_request", seen)
    notebook.run("%connect --project research/capitals")
    notebook.run(CHAT.replace("4", "8"))
    notebook.run("%%reward capitals\nreturn hash(trajectory.name)")
    notebook.run("%%train capitals")
    assert {request.headers["OpenAI-Project"] for request in sent} == {"research/capitals"}
    assert {request.headers["Vendor-Project"] for request in sent} == {"research/capitals"}


def test_the_selected_model_is_the_default_again_where_the_service_differs(with_profiles):
    with_profiles.run("%model lab/second")
    with_profiles.run("%connect --project ada/mine")
    assert with_profiles.run("%model").name == "lab/second"
    with_profiles.run("%connect hosted")
    assert with_profiles.run("%model").name == "lab/practice"


def test_a_job_is_still_followed_on_the_service_that_it_was_sent_to(with_profiles, session, tmp_path):
    with_profiles.run(CHAT)
    with_profiles.run("%%reward capitals\nreturn int(trajectory.name[-1])")
    job = with_profiles.run("%%train capitals --no-wait")
    session.connect("embedded")
    assert job.wait().status == "succeeded"
    assert session.job(job.id[:8]).status == "succeeded"
    assert not (tmp_path / "service" / "service.json").exists()


def test_a_job_of_a_service_that_is_not_known_says_how_to_reach_it(notebook, session):
    notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn int(trajectory.name[-1])")
    job = notebook.run("%%train capitals")
    with session.store._database.write() as connection:
        connection.execute("UPDATE jobs SET service = 'https://train.example'")
        connection.execute("DELETE FROM job_events")
    assert notebook.error(f"%job {job.id[:8]}") == (
        "NotFoundError: the job was sent to https://train.example, which is not connected\n"
        "  -> %connect https://train.example"
    )


ANSWERS = {
    "refused": (httpx.ConnectTimeout(""), "UnreachableError: nothing answers at http://localhost"),
    "401": (httpx.Response(401), "SignInError: http://localhost wants a token: 401 Unauthorized"),
    "404": (httpx.Response(404), "ServiceError: http://localhost is not such a service: Not Found"),
    "405": (httpx.Response(405), "ServiceError: http://localhost is not such a service: "),
    "301": (httpx.Response(301), "ServiceError: http://localhost is not such a service: "),
    "html": (httpx.Response(200, text="<html>"), "ServiceError: http://localhost answered with something that is not"),
    "json": (httpx.Response(200, json={"a": 1}), "ServiceError: http://localhost is not such a service: "),
    "list": (httpx.Response(200, json=[]), "ServiceError: http://localhost is not such a service: it"),
    "500": (httpx.Response(500), "ServiceError: http://localhost answered 500"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_service_that_does_not_answer_as_one_is_refused_and_the_one_before_stays(notebook, session, answered, answer):
    before = session.settings
    answered(ANSWERS[answer][0])
    message = notebook.error("%connect http://localhost").splitlines()
    assert message[0].startswith(ANSWERS[answer][1])
    assert len(message) == 2 or answer in {"html", "500"}
    assert session.settings is before


CATCH_ALL = {
    "200 page": httpx.Response(200, text="<html>Welcome</html>"),
    "200 json": httpx.Response(200, json={"status": "ok"}),
    "200 error": httpx.Response(200, json={"error": {"message": "Unexpected endpoint or method"}}),
    "200 list": httpx.Response(200, json=[]),
    "301": httpx.Response(301, headers={"Location": "https://docs.example/"}),
    "400": httpx.Response(400, json={"error": "bad request"}),
    "403": httpx.Response(403, text="Forbidden"),
    "404 no route": httpx.Response(404, json={"message": "no Route matched with those values"}),
    "404 url": httpx.Response(404, json={"error": {"message": "Invalid URL (GET /v1/models)", "code": None}}),
    "404 odd": httpx.Response(404, json={"error": {"message": "nothing to see here"}}),
    "405": httpx.Response(405, json={"detail": "Method Not Allowed"}),
    "405 page": httpx.Response(405, text="x"),
    "500": httpx.Response(500, json={"detail": "no handler"}),
}
NO_MODEL = {
    "404": httpx.Response(404, json={"error": {"message": "The model `none` does not exist."}}),
    "404 odd": httpx.Response(404, json={"error": {"message": "unknown name none"}}),
    "400": httpx.Response(400, json={"error": {"message": "none is not a valid model ID"}}),
    "403": httpx.Response(403, json={"error": {"message": "your key may not use the model none"}}),
    "500": httpx.Response(500, json={"error": {"message": "upstream failed"}}),
    "200 error": httpx.Response(200, json={"error": {"message": "no such model", "code": 400}}),
}


@pytest.mark.parametrize("no_model", NO_MODEL)
@pytest.mark.parametrize("elsewhere", CATCH_ALL)
def test_a_gateway_that_answers_any_path_is_connected_where_it_has_chat_completions(
    notebook, session, elsewhere, no_model
):
    def respond(request):
        return NO_MODEL[no_model] if request.url.path == "/v1/chat/completions" else CATCH_ALL[elsewhere]

    session._connector.http = HttpClient(httpx.MockTransport(respond), backoff=0)
    connected = notebook.run("%connect http://gateway.example")
    assert repr(connected).startswith(
        "http://gateway.example answers: it samples, but does not train; it does not list its models"
    )
    assert connected.trains in {False, None}
    session._connector.http.close()


@pytest.mark.parametrize("elsewhere", [405, 501])
def test_a_service_whose_jobs_cannot_be_listed_trains_unless_any_path_answers_so(notebook, session, elsewhere):
    def respond(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        known = request.url.path.endswith("/training-jobs") and trains
        return httpx.Response(405 if known else 404 if trains else elsewhere)

    session._connector.http = HttpClient(httpx.MockTransport(respond), backoff=0)
    trains = True
    assert notebook.run("%connect http://some.example").trains is True
    trains = False
    assert notebook.run("%connect http://some.example").trains is False
    session._connector.http.close()


@pytest.mark.parametrize("everywhere", CATCH_ALL)
def test_what_answers_any_path_alike_is_no_service(notebook, session, everywhere):
    session._connector.http = HttpClient(httpx.MockTransport(lambda _: CATCH_ALL[everywhere]), backoff=0)
    message = notebook.error("%connect http://gateway.example")
    assert message.startswith(("ServiceError: http://gateway.example ", "SignInError: http://gateway.example "))
    session._connector.http.close()


def test_a_service_that_only_samples_is_said_to(notebook, session):
    def respond(request):
        listed = {"data": [{"id": "tiny"}, "odd"]}
        return httpx.Response(200, json=listed) if request.url.path == "/v1/models" else httpx.Response(404)

    session._connector.http = HttpClient(httpx.MockTransport(respond), backoff=0)
    assert repr(notebook.run("%connect http://infer.example")).startswith(
        "http://infer.example answers: it samples, but does not train; 1 model by name"
    )
    assert "tiny" in session.models.seen
    assert re.search(r"\n  key +none$", repr(notebook.run("%connect")), re.MULTILINE)  # http: no key, and no sign-in
    session._connector.http.close()


REFUSALS = {
    "%connect wandb": "'' is not a project name\n  -> %connect wandb:ENTITY/PROJECT",
    "%connect wandb:foo": "'foo' is not a project name\n  -> %connect wandb:ENTITY/PROJECT",
    "%connect together:x/y": (
        "the address of 'together' is not known here; of a service with Tinker's API it can be given"
        "\n  -> rolloutlab serve --engine tinker --engine-url URL, and %connect to that"
    ),
    "%connect http://10.1.2.3:1 --key-env TRAIN_KEY": (
        "http://10.1.2.3:1 is not encrypted: a key could be read on the way"
        "\n  -> https://10.1.2.3:1; or --insecure-http, inside your own network"
    ),
    "%connect hostd": "there is no profile 'hostd'\n  -> hosted",
    "%connect nowhere": "there is no profile 'nowhere'\n  -> [profiles.nowhere] in the file",
    "%connect train.example": "'train.example' lacks http:// or https://\n  -> https://train.example",
    "%connect keyless --key-env ABSENT_KEY": (
        "the environment variable ABSENT_KEY, which should hold the key, is not set\n  -> %env ABSENT_KEY="
    ),
    "%connect keyless --key-env sk-1234": (
        "a key is given by the name of the environment variable that holds it, in capitals; this is not a name"
        "\n  -> ROLLOUTLAB_API_KEY"
    ),
    "%connect hosted --project mine": "'mine' is not a project name\n  -> TEAM/PROJECT",
    "%connect embedded --key-env TRAIN_KEY": (
        "--key-env is for a service elsewhere\n  -> %connect embedded --project TEAM/PROJECT"
    ),
    "%connect hosted --key-env TRAIN_KEY --key-keyring": (
        "a key is in a variable or in the keyring\n  -> %connect hosted --key-keyring"
    ),
    "%connect embedded --key-keyring": (
        "--key-keyring is for a service elsewhere\n  -> %connect embedded --project TEAM/PROJECT"
    ),
    "%connect --search http://127.0.0.1:9/x --key-keyring": (
        "search= cannot be combined with the arguments of a service\n  -> %connect --search http://127.0.0.1:9/x"
    ),
    "%connect hosted --inference x --inference=y": "'y' lacks http:// or https://\n  -> https://y",
}


@pytest.fixture
def typed(monkeypatch, service):
    """What is typed where a key is asked for, the service's own at first, and every question."""
    questions, answers = [], [service.address.token]

    def ask(question):
        questions.append(question)
        return answers[-1]

    monkeypatch.setattr("getpass.getpass", ask)
    monkeypatch.setattr("rolloutlab.widgets.login.frontend.context_of", lambda _shell: FrontEndContext(True, True))
    return SimpleNamespace(questions=questions, answers=answers)


def test_a_key_of_the_keyring_is_asked_for_once_unseen_and_found_again_by_the_next_notebook(
    notebook, session, service, ring, typed
):
    line = "%connect http://localhost --key-keyring"
    assert ["key", "in", "the", "keyring"] in [row.split()[:4] for row in repr(notebook.run(line)).splitlines()]
    assert len(notebook.run(CHAT)) == 2
    assert list(ring) == [("rolloutlab API key", "http://localhost")]
    notebook.run("%connect http://localhost --key-env TRAIN_KEY")
    notebook.run(line)
    assert typed.questions == ["API key of http://localhost (it is not shown): "]
    assert service.address.token not in repr(session.settings)


def test_a_key_that_was_typed_for_one_place_is_asked_for_anew_for_another(notebook, ring, typed):
    notebook.run("%connect http://localhost --key-keyring")
    notebook.run("%connect http://localhost --inference http://127.0.0.1/v1 --key-keyring")
    assert len(typed.questions) == 2
    notebook.run("%connect --inference http://localhost/v1")
    assert len(typed.questions) == 2


def test_a_key_that_is_refused_is_not_kept_and_one_that_was_kept_is_forgotten_by_logout(notebook, ring, typed):
    typed.answers.append("wrong")
    refused = notebook.error("%connect http://localhost --key-keyring")
    assert "refused the token" in refused
    assert refused.endswith("-> %connect http://localhost --key-keyring")
    assert not ring
    typed.answers.pop()
    notebook.run("%connect http://localhost --key-keyring")
    notebook.run("%connect embedded")
    ring["rolloutlab API key", "http://localhost"] = '{"key": "old", "origins": ["http://localhost"]}'
    assert "\n  -> %logout http://localhost" in notebook.error("%connect http://localhost --key-keyring")
    notebook.run("%logout http://localhost")
    assert not ring
    assert "not signed in" in notebook.error("%logout http://localhost")


def test_a_key_that_was_forgotten_is_no_longer_sent(notebook, session, ring, typed):
    notebook.run("%connect http://localhost --key-keyring")
    notebook.run("%connect http://localhost --key-keyring")
    notebook.run("%logout http://localhost")
    assert {address.token for address in session._connector.former if address.base_url == "http://localhost"} == {None}
    assert notebook.error(CHAT).startswith("SignInError")


def test_where_no_keyring_is_or_nobody_types_it_is_said_what_to_type(notebook, ring, monkeypatch):
    env = "-> %connect http://localhost --key-env ROLLOUTLAB_API_KEY"
    monkeypatch.setattr("sys.stdin", None)
    message = notebook.error("%connect http://localhost --key-keyring")
    assert "cannot ask for it" in message
    assert env in message
    assert "is not encrypted" in notebook.error("%connect http://train.example --key-keyring")
    monkeypatch.setattr("rolloutlab.auth.api_keys.has_keyring", lambda: False)
    message = notebook.error("%connect http://localhost --key-keyring")
    assert "no keyring that programs can use" in message
    assert env in message


@pytest.mark.parametrize("line", REFUSALS)
def test_a_connection_that_cannot_be_is_told_before_anything_is_asked(with_profiles, session, answered, line):
    answered(AssertionError("nothing was to be asked"))
    before = session.settings
    assert with_profiles.error(line) == f"InputError: {REFUSALS[line]}"
    assert session.settings is before


def test_what_is_shown_is_readable_without_styles_and_escaped(notebook, session):
    session.settings = replace(session.settings, project="<script>/x", profiles={"<b>": Profile("http://a")})
    session.settings = replace(session.settings, service=replace(session.settings.service, project="<script>/x"))
    html = session.connect()._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;/x" in html
    assert "&lt;b&gt;" in html


def test_a_service_that_does_not_answer_is_what_is_shown_first(notebook, session, answered):
    assert "samples and trains" in session.connect()._repr_html_()
    answered(httpx.ConnectTimeout(""))
    html = session.connect()._repr_html_()
    assert html.index('rl-is-bad">no answer') < html.index("UnreachableError") < html.index("<table")


def test_a_broken_settings_file_is_told_by_the_first_cell_that_needs_it(bare, tmp_path, monkeypatch):
    path = tmp_path / "settings.toml"
    path.write_text("linger = 5\npolcy = 'practice'")
    monkeypatch.setenv("ROLLOUTLAB_SETTINGS", str(path))
    monkeypatch.setenv("ROLLOUTLAB_HOME", str(tmp_path / "lab"))
    shell = bare
    shell.run_line_magic("load_ext", "rolloutlab")
    error = shell.run_cell("%collections", store_history=False).error_in_exec
    assert (str(error), error.hint) == (f"{path}, line 2: unknown setting 'polcy'", "policy")
    path.write_text("linger = 5\npolicy = 'practice'")
    assert shell.run_cell("%collections", store_history=False).result.empty
    shell.find_line_magic("connect").__self__.session.close()


@pytest.mark.parametrize(("variable", "file"), [("SSL_CERT_FILE", None), ("SSL_CERT_FILE", "no certificate")])
def test_certificates_that_cannot_be_read_are_named_and_the_embedded_service_needs_none(
    notebook, session, monkeypatch, tmp_path, variable, file
):
    path = tmp_path / "ca.pem"
    if file:
        path.write_text(file)
    monkeypatch.setenv(variable, str(path))
    session._connector.http = HttpClient(backoff=0)
    message = notebook.error("%connect https://127.0.0.1:9")
    assert f"the certificates in {path}, which {variable} names, cannot be read" in message
    assert f"%env {variable}=" in message
    assert "the connection was refused" in notebook.error("%connect http://127.0.0.1:9")
    session._connector.http.close()
