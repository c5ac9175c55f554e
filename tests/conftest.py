"""Fixtures of every room. torch and what stands on it are imported inside: tests of the light rooms stay light."""

import functools
import gc
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import hypothesis
import pytest

from rolloutlab.api import inference, training
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from rolloutlab.api.wire.training import ENDINGS, CreateTrainingJob, Event, Model, RegisterModel
from rolloutlab.runtime import LoopThread
from rolloutlab.sampling.batches import Batches
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.sqlite import Database
from rolloutlab.widgets.progress import Progress
from tests.copies import LoraCopies, create_tables_at_once
from tests.parquet_footers import ForkedChecks, stand_in
from tests.policies import byte_tokenizer, save_policy

if TYPE_CHECKING:
    from rolloutlab.policy.model import Policy
    from rolloutlab.service.job_queue import Jobs

hypothesis.settings.register_profile("fast", deadline=None, derandomize=True, max_examples=25)  # the same everywhere
hypothesis.settings.register_profile("deep", deadline=None, max_examples=1000)  # other examples at each run
hypothesis.settings.load_profile("fast")
os.environ["ROLLOUTLAB_SETTINGS"] = os.devnull  # not those of whoever runs the tests
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread would only wait
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the suite in its background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ... and nohup this

TOKEN = "of-this-test"
PASSCODE = "lab1-open-says"
collect_ignore = ["acceptance"]  # its clients are not installed here: make acceptance


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules and rooms without a test that `-m` wants, as the Makefile has it, are not imported.

    Tests of processes would otherwise bring torch and 8,000 tests, and the others playwright and notebooks.
    """
    unwanted = {
        "process and not long": lambda text: "mark.process" not in text,
        "long": lambda text: "mark.long" not in text,
        "not process and not long": lambda text: "\npytestmark = pytest.mark.process\n" in text,
    }.get(config.option.markexpr)
    modules = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    if unwanted and (collection_path.is_dir() or collection_path.name.startswith("test_")):
        return True if all(unwanted(module.read_text()) for module in modules) else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the 14,000 tests out of each search for garbage, which took a third of the time here as later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def spared_garbage() -> Iterator[None]:
    """What a module leaves behind is out of later searches for garbage, each of which took a second near the end."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def parquet_footers() -> Iterator[None]:
    """Checked in forks of one process, which starts where the first Parquet file is read."""
    checks = ForkedChecks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rolloutlab.sampling.parquet_rows.subprocess", stand_in(checks))
        yield
    checks.end()


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Read once for each place that they may be in: 30 ms of processor time, for each of hundreds of fetches."""
    create = httpx.create_ssl_context
    read = functools.cache(lambda _, **options: create(**options))

    def of(**options: Any) -> Any:
        return read((os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx, "create_ssl_context", of)
        yield


@pytest.fixture(scope="session", autouse=True)
def tables_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        create_tables_at_once(patch)
        yield


@pytest.fixture(scope="session")
def lora_copies() -> Iterator[LoraCopies]:
    from rolloutlab.policy.model import Policy

    copies = LoraCopies(Policy.lora_copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "lora_copy", lambda policy: copies.of(policy))
        yield copies


@pytest.fixture
def readme_cells() -> list[str]:
    """What a newcomer types: the blocks of "The first cells", sampled with a seed to do the same every time."""
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    part = readme.partition("## The first cells")[2].partition("| magic | does |")[0]
    found = re.findall(r"```(?:python)?\n(.*?)```", part, re.DOTALL)
    return [cell.replace("-n 8", "-n 8 --seed 1").replace("n=8", "n=8, seed=1") for cell in found]


@pytest.fixture
def ring() -> Iterator[dict[tuple[str, str], str]]:
    """A keyring in the place of this machine's: what it holds, by service and name."""
    keyring = pytest.importorskip("keyring")
    from keyring.backend import KeyringBackend
    from keyring.errors import PasswordDeleteError

    before = keyring.get_keyring()  # before there is another that it could find
    held: dict[tuple[str, str], str] = {}

    class Ring(KeyringBackend):
        priority = -1

        def get_password(self, service: str, name: str) -> str | None:
            return held.get((service, name))

        def set_password(self, service: str, name: str, password: str) -> None:
            held[service, name] = password

        def delete_password(self, service: str, name: str) -> None:
            if held.pop((service, name), None) is None:
                raise PasswordDeleteError

    keyring.set_keyring(Ring())
    yield held
    keyring.set_keyring(before)


@dataclass
class Service:
    """The service as a client sees it: calls in the words of the specification."""

    http: HttpClient
    address: Address
    policy: str
    folder: Path
    database: Database
    jobs: "Jobs"
    closing: tuple[Callable[[], None], ...]

    def stop(self) -> None:
        for close in self.closing:
            close()
        from fastapi.dependencies import models

        for kept in vars(models).values():  # by what an endpoint is, which holds engines with their models
            getattr(kept, "cache_clear", bool)()

    def empty(self) -> None:
        """Delete all models, with their jobs."""
        for folder in (self.folder / "models").glob("*"):
            self.jobs.delete_model(folder.name)

    def call(self, method: str, path: str, **options: Any) -> Any:
        url = f"{self.address.base_url}{path}"
        return self.http.run(self.http.request(method, url, **{"token": TOKEN, **options}))

    def chat(self, content: str = "hello", **options: Any) -> ChatCompletion:
        request = ChatRequest.model_validate(self._body(content, options))
        return self.http.run(inference.complete(self.http, self.address, request))

    def stream(self, content: str = "hello", **options: Any) -> list[ChatCompletionChunk]:
        """The chunks of a streamed completion, once it has ended."""
        lines = self.text("/v1/chat/completions", self._body(content, options) | {"stream": True}).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [ChatCompletionChunk.model_validate_json(line.removeprefix("data: ")) for line in lines[:-2]]

    def text(self, path: str, body: Any) -> str:
        """The text of an answer that is not JSON."""

        async def post() -> str:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(transport=self.http._transport, headers=headers) as client:
                return (await client.post(f"{self.address.base_url}{path}", json=body)).text

        return self.http.run(post())

    def _body(self, content: str, options: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": self.policy, "messages": messages, "max_tokens": 8, **options}

    def register(self, name: str = "first") -> Model:
        wanted = RegisterModel(project="lab", name=name, return_existing=True)
        return self.http.run(training.register_model(self.http, self.address, wanted))

    def train(self, job: CreateTrainingJob, key: str = "") -> str:
        return self.http.run(training.create_job(self.http, self.address, job, key or uuid.uuid4().hex))

    def ended(self, job_id: str) -> list[Event]:
        """The events of a job once it has ended and been cleaned up; asking again and again is how a client waits."""
        body, patience = self.folder / "jobs" / f"{job_id}.json", 1_000
        while True:
            events = self.http.run(training.events(self.http, self.address, job_id))
            if events and events[-1].type in ENDINGS:
                patience -= 1
                if not patience or not body.exists():  # it goes right after the last event, in the queue's thread
                    return events


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny untrained policy whose tokenizer and template are nothing like the practice policy's."""
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    template = (
        "<s>{% for m in messages %}{% if m.role == 'assistant' %}[tell]{{ m.content }}</s>"
        "{% else %}[ask]{{ m.role }} {{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[tell]{% endif %}"
    )
    text, special = ["the quick brown fox jumps over the lazy dog"], ["<s>", "</s>", "[ask]", "[tell]"]
    names, sizes = {"bos_token": "<s>", "eos_token": "</s>"}, {"intermediate_size": 64, "max_position_embeddings": 128}
    save_policy(folder, byte_tokenizer(text, 300, special), template, names, "llama", **sizes)
    return folder


@pytest.fixture(scope="session")
def worded_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny untrained policy of yet another kind.

    Its tokens are pieces of words that carry their spaces, its vocabulary has entries that the tokenizer does not know,
    its embeddings are tied, and its template writes tools and calls.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("policies") / "worded"
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<begin>", "<end>", "[INST]", "[/INST]"]
    text = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs", "élan naïve 🦊"]
    text += [*map(chr, range(33, 127)), "[TOOL_CALLS]", '[{"name": "f", "arguments": {"a": 1}}]']
    trainer = trainers.UnigramTrainer(vocab_size=220, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    names = {"bos_token": "<begin>", "eos_token": "<end>", "unk_token": "<unk>", "pad_token": "<unk>"}
    template = (
        "<begin>{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{% if m.tool_calls %}[TOOL_CALLS] ["
        "{% for call in m.tool_calls %}{{ call.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]"
        "{% else %} {{ m.content }}{% endif %}<end>"
        "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
    )
    sizes = {"max_position_embeddings": 256, "tie_word_embeddings": True}
    save_policy(folder, tokenizer, template, names, seed=1, unknown=11, **sizes)
    return folder


@pytest.fixture(scope="session")
def policy(tiny_policy: Path, lora_copies: LoraCopies) -> "Policy":
    from rolloutlab.policy.model import load_policy

    return lora_copies.keep(load_policy(str(tiny_policy)))


@pytest.fixture(scope="session")
def practice_policy(lora_copies: LoraCopies) -> "Policy":
    from rolloutlab.policy.model import load_policy

    return lora_copies.keep(load_policy("practice"))


@pytest.fixture
def start(policy: "Policy", tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts the application in this process, each time over the same folder and after the one before.

    options: of the registry.
    """
    running: list[Service] = []

    def begin(with_policy: "Policy" = policy, **options: Any) -> Service:
        for service in running:
            service.stop()
        running.clear()
        running.append(make_service(with_policy, tmp_path / "service", **options))
        return running[0]

    yield begin
    for service in running:
        service.stop()


def make_service(policy: "Policy", folder: Path, **options: Any) -> Service:
    from rolloutlab.engines.local import LocalEngine
    from rolloutlab.service.app import make_app
    from rolloutlab.service.database import open_service_database
    from rolloutlab.service.endpoints.chat import Ledger
    from rolloutlab.service.job_queue import Jobs
    from rolloutlab.service.mcp.lab import LabTools
    from rolloutlab.service.model_registry import Registry
    from rolloutlab.service.oauth.server import AuthorizationServer

    database, engine = open_service_database(folder), LocalEngine(policy)
    try:
        registry = Registry(database, folder, engine, **options)
    except BaseException:
        database.close()
        engine.close()
        raise
    jobs = Jobs(database, folder, registry, engine, pause=0.01)
    memory = LabTools(Settings(home=folder.parent))
    authority = AuthorizationServer("http://127.0.0.1", database, b"a key", lambda: PASSCODE)
    app = make_app(registry, engine, jobs, Ledger(database), TOKEN, {"policy": policy.name}, authority, memory)
    http = HttpClient(httpx.ASGITransport(app), backoff=0)
    address = Address("http://127.0.0.1", "http://127.0.0.1/v1", TOKEN)
    closing = http.close, jobs.close, engine.close, memory.close, database.close
    return Service(http, address, policy.name, folder, database, jobs, closing)


@pytest.fixture(scope="module")
def service(policy: "Policy", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service of the tiny policy, one for the tests of a module; `start` makes one of a test's own."""
    service = make_service(policy, tmp_path_factory.mktemp("lab") / "service")
    yield service
    service.stop()


@pytest.fixture(scope="module")
def practice_service(practice_policy: "Policy", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service of the practice policy, one for the tests of a module."""
    service = make_service(practice_policy, tmp_path_factory.mktemp("lab") / "service")
    yield service
    service.stop()


@pytest.fixture
def session(service: Service, tmp_path: Path) -> Iterator[Session]:
    """A notebook's session on a lab of its own, talking to the service in this process."""
    session = Session(Settings(home=tmp_path, service=service.address), http=service.http)
    yield session
    session.close()


@pytest.fixture
def interrupt_at_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], None]:
    """Interrupts a run of a session once it has ended, while its last results wait for a slow disk."""

    def arrange(session: Session) -> None:
        ending, interrupted = threading.Event(), threading.Event()
        write, flush, let_end = session.store.at_once, Batches.flush_at_end, LoopThread._let_end

        def write_slowly(work: Callable[[], Any]) -> Any:
            assert interrupted.wait(240)
            return write(work)

        async def flush_and_tell(batches: Batches[Any]) -> None:
            ending.set()
            await flush(batches)

        def interrupt(*_: Any) -> None:
            if ending.is_set():
                raise KeyboardInterrupt

        def wait_for_end(loop: LoopThread, outcome: Any, to_its_end: bool) -> None:
            interrupted.set()
            let_end(loop, outcome, to_its_end)

        monkeypatch.setattr(session.store, "at_once", write_slowly)
        monkeypatch.setattr(Batches, "flush_at_end", flush_and_tell)
        monkeypatch.setattr(Progress, "update", interrupt)
        monkeypatch.setattr(LoopThread, "_let_end", wait_for_end)

    return arrange


def _trajectory(reward: float, tokens: int = 4, **overrides: Any) -> dict[str, Any]:
    content = [
        {"token": chr(97 + i % 26), "token_id": 20 + i % 200, "logprob": -5.7, "top_logprobs": []}
        for i in range(tokens)
    ]
    choice = {
        "finish_reason": "length",
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "logprobs": {"content": content},
    }
    return {"messages_and_choices": [{"role": "user", "content": "hello"}, choice], "reward": reward, **overrides}


@pytest.fixture(scope="session")
def trajectory():
    """Makes the JSON of a trajectory that trains."""
    return _trajectory


@pytest.fixture(scope="session")
def body():
    """Makes the JSON of a job for a model, without asking the service for completions."""

    def make(model_id: Any, **overrides: Any) -> dict[str, Any]:
        group = {"trajectories": [_trajectory(0.0), _trajectory(1.0)]}
        return {"model_id": str(model_id), "trajectory_groups": [group], **overrides}

    return make
