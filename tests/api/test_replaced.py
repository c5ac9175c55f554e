"""An embedded service that is killed while it is asked, and what takes its port: the error says that it has ended."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.secrecy import proof
from rolloutlab.errors import SignInError, UnreachableError
from rolloutlab.fsutil import Lock
from rolloutlab.session import Session
from rolloutlab.settings import Settings

URL = "http://127.0.0.1:9"
ROWS, ANSWERED = 6, 2


class Service:
    """An embedded service as its clients see it, until it is killed and something else answers at its port."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.service_folder
        self.token = self.instance = ""
        self.asked: list[str] = []
        self.killed: Callable[[], None] = lambda: None
        """What happens after the first answers."""
        self.start("first")

    def start(self, token: str) -> None:
        """Answer with that token, and publish it."""
        self.token = self.instance = token
        self._folder.mkdir(parents=True, exist_ok=True)
        said = {"base_url": URL, "inference_base_url": f"{URL}/v1", "policy": "practice", "pid": 1, "instance": token}
        (self._folder / "service.json").write_text(json.dumps(said))
        (self._folder / "token").write_text(token)

    def another_program_answers(self) -> None:
        """What the killed service had published lies there still."""
        self.token = ""

    def another_service_starts(self) -> None:
        """It has withdrawn what was published, and answers before it has published itself."""
        self.token = "second"
        (self._folder / "service.json").unlink()

    def another_service_was_killed_too(self) -> None:
        """It had published itself."""
        self.start("second")
        self.token = ""

    def it_refuses_its_own_token(self) -> None:
        """It has not ended."""
        self.refuses = True

    refuses = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/health":
            said = {"proof": proof(self.token or "no such token", request.url.params["nonce"], URL)}
            return httpx.Response(200, json={**said, "instance": self.instance})
        if request.url.path == "/v1/preview/engine":
            return httpx.Response(404)
        if len(self.asked) == ANSWERED:
            self.killed()
        if self.refuses or request.headers["Authorization"] != f"Bearer {self.token}":
            return httpx.Response(401, json={"detail": "another token"})
        prompt = json.loads(request.content)["messages"][-1]["content"]
        self.asked.append(prompt)
        choice = {"index": 0, "message": {"role": "assistant", "content": "!"}, "finish_reason": "stop"}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return httpx.Response(200, json=body)


@pytest.fixture
def service(tmp_path) -> Service:
    return Service(Settings(home=tmp_path))


@pytest.fixture
def lab(service, tmp_path) -> Iterator[Session]:
    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(service.answer), backoff=0))
    with Lock(session.settings.service_folder / "lock"):  # as a service that has started anew holds it
        yield session
    session.close()


def chat(lab: Session) -> None:
    lab.chat("c", "{{i}}", over=[{"i": str(i)} for i in range(ROWS)], model="m", concurrency=1)


@pytest.mark.parametrize(
    "fate", ["another_program_answers", "another_service_starts", "another_service_was_killed_too"]
)
def test_a_chat_whose_service_is_killed_says_so_and_is_resumed_on_the_next(lab, service, fate, capsys):
    service.killed = getattr(service, fate)
    with pytest.raises(UnreachableError, match=f"the embedded service at {URL} has ended during the request") as error:
        chat(lab)
    assert "--resume" in error.value.hint
    kept = f"{ANSWERED} of {ROWS} completions had arrived; what was sampled is kept -> %%chat c:1 --resume"
    assert kept in capsys.readouterr().out
    service.killed = lambda: None
    service.asked.clear()
    service.start("third")
    lab.resume("c")
    assert service.asked == [str(i) for i in range(ANSWERED, ROWS)]


def test_a_service_that_starts_anew_at_once_is_told_its_new_token_and_the_chat_goes_on(lab, service):
    service.killed = lambda: service.start("second")
    chat(lab)
    assert service.asked == [str(i) for i in range(ROWS)]


def test_a_service_that_has_not_ended_and_refuses_its_token_is_a_matter_of_the_token(lab, service):
    service.killed = service.it_refuses_its_own_token
    with pytest.raises(SignInError, match="refused the token: 401 another token"):
        chat(lab)
