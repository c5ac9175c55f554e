"""`%export MODEL@STEP --to FOLDER`: the best checkpoint is taken away, with a card that says what is known of it."""

import http.server
import json
import threading
from contextlib import contextmanager, suppress

import pytest

from rolloutlab.api import training
from rolloutlab.errors import InputError, NotFoundError, NotOfferedError, PolicyError, ServiceError, SignInError
from rolloutlab.trajectories.overview import summarize_job
from rolloutlab.trajectories.rewards_data import shared_rewards

ROWS = [{"country": f"Country {i}"} for i in range(20)]


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Merge in this process, which has torch already; `test_merging.py` does it as a notebook does."""
    from rolloutlab.policy import merged_folder

    monkeypatch.setattr("rolloutlab.training.checkpoint_export.write_merged", lambda adapter, folder, *rest: (
        merged_folder.write_merged(str(adapter), str(folder), *rest)
    ))  # fmt: skip


@pytest.fixture
def trained(session):
    """A session whose model has a checkpoint 1."""
    session.chat("letters", "user: Capital of {{country}}?", over=ROWS[:2], n=2, max_tokens=4, seed=1)
    session.reward("letters", lambda answer: len(answer) / 10)
    session.train("letters", {"learning_rate": 0.01}).wait()
    return session


def by_position(trajectory):
    """The second completion of each prompt is better."""
    return float(trajectory.name[-1])


def card_of(folder):
    return (folder / "README.md").read_text()


def test_an_adapter_folder_has_all_that_peft_needs(trained, tiny_policy, tmp_path):
    done = trained.models.export("lab/practice@1", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_policy)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"adapter_model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md"}
    assert "optimizer.safetensors" not in names
    assert repr(done).startswith("lab/practice@1: adapter, ")
    assert f"its base is on this machine only, at {tiny_policy}" in repr(done)


def test_the_code_of_the_card_loads_the_model(trained, service, tmp_path):
    import torch

    trained.models.export("lab/practice@1", tmp_path / "out")
    code = card_of(tmp_path / "out").partition("```python\n")[2].partition("```")[0]
    loaded = {}
    exec(code.replace('"FOLDER"', repr(str(tmp_path / "out"))), loaded)
    sampled = service.chat(model="lab/practice@1", logprobs=True, max_tokens=8)
    prompt = loaded["tokenizer"].apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, return_dict=False
    )
    tokens = [each.token_id for each in sampled.choices[0].logprobs.content]
    with torch.no_grad():
        scored = loaded["model"](input_ids=torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)
    expected = [each.logprob for each in sampled.choices[0].logprobs.content]
    own = [float(scored[len(prompt) + i - 1, token]) for i, token in enumerate(tokens)]
    assert own == pytest.approx(expected, abs=1e-4)


def test_the_card_says_what_it_was_trained_on(trained, tmp_path):
    trained.models.export("@1", tmp_path / "out")
    card = card_of(tmp_path / "out")
    assert "library_name: peft\n" in card
    assert "pipeline_tag: text-generation\n" in card
    assert "base_model:" not in card.partition("\n---\n")[0], "a folder is no name of the hub"
    assert "| 1 | letters:1 | " in card
    assert "learning_rate: 0.01" in card


def test_without_a_measurement_the_card_says_which_cell_measures(trained, tmp_path):
    done = trained.models.export("lab/practice", tmp_path / "out")
    cell = "%compare letters lab/practice@0 lab/practice@1 --over held_out"
    assert (
        f"It was not measured. This cell of a notebook measures it, on rows that it was not trained on:\n\n    {cell}"
        in (card_of(tmp_path / "out"))
    )
    assert cell in repr(done)


def test_the_interval_of_the_card_is_the_one_that_compare_prints(trained, tmp_path):
    compared = trained.compare("letters", over=ROWS[2:])
    trained.models.export("lab/practice@1", tmp_path / "out")
    lines = card_of(tmp_path / "out").splitlines()
    assert compared.words()
    assert [line.strip() for line in lines if line.startswith("    letters: ")] == [compared.words()[0]]
    for line in compared.words():
        assert f"    {line}" in lines


def test_the_mean_of_the_card_is_the_one_that_rewards_shows(trained, tmp_path):
    trained.compare("letters", over=ROWS[2:])
    label = "compare.letters.lab.practice.step1"
    trained.models.export("lab/practice@1", tmp_path / "out")
    data = shared_rewards(trained.store, [trained.store.find(label)], None)
    overview = summarize_job(data, trained.store)
    low, high = overview.interval
    assert f"Mean reward {overview.whole.mean:.3f} (95% interval {low:.3f} to {high:.3f})" in card_of(tmp_path / "out")


def test_prompts_that_were_trained_on_are_no_held_out_ones(trained, tmp_path):
    trained.compare("letters")
    trained.models.export("lab/practice@1", tmp_path / "out")
    assert "It was trained on 2 of these prompts: this is not a held-out mean." in card_of(tmp_path / "out")
    trained.compare("letters", over=ROWS[2:])
    trained.compare("letters")
    trained.models.export("lab/practice@1", tmp_path / "out", overwrite=True)
    assert "this is not a held-out mean" not in card_of(tmp_path / "out")


def test_a_loop_measures_what_the_card_compares(session, tmp_path):
    options = {"over": ROWS[:2], "held_out": ROWS[2:], "n": 2, "max_tokens": 4, "every": 1, "seed": 1}
    loop = session.loop("l", "user: {{country}}", by_position, jobs=1, say=lambda _: None, **options)
    session.models.export("lab/practice@1", tmp_path / "out")
    card = card_of(tmp_path / "out")
    assert loop.measured.keys() == {0, 1}
    assert "18 prompts, 36 completions: `" in card
    assert "    held_out.l: lab/practice@0 -> lab/practice@1 on 18 prompts" in card.splitlines()


def test_merged_weights_are_loaded_by_transformers(trained, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = trained.models.export("lab/practice@1", tmp_path / "out", merged=True)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    card = card_of(tmp_path / "out")
    assert "library_name: transformers\n" in card
    assert "They are in float32, as in the service that trained them." in card
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert "merged weights" in repr(done)


def test_a_folder_that_is_not_empty_is_refused(trained, tmp_path):
    trained.models.export("lab/practice@1", tmp_path / "out")
    with pytest.raises(InputError, match="is not empty"):
        trained.models.export("lab/practice@0", tmp_path / "out")
    trained.models.export("lab/practice@0", tmp_path / "out", overwrite=True)
    assert "Checkpoint 0 is not trained" in card_of(tmp_path / "out")
    assert {path.name for path in tmp_path.glob(".out*")} == set()


def test_only_what_an_export_has_written_is_replaced(trained, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"has files that no export wrote: thesis\.tex"):
        trained.models.export("lab/practice@1", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_an_error_leaves_no_half_folder(trained, tmp_path, monkeypatch):
    def fail(*_):
        raise PolicyError("no memory")

    monkeypatch.setattr("rolloutlab.training.checkpoint_export.write_merged", fail)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(PolicyError, match=r"no memory; the base .* is needed on this machine"):
        trained.models.export("lab/practice@1", tmp_path / "out", merged=True)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_a_killed_export_left_is_replaced(trained, tmp_path):
    (tmp_path / ".out.export").mkdir()
    (tmp_path / ".out.export" / "half").write_text("")
    trained.models.export("lab/practice@1", tmp_path / "out")
    assert not (tmp_path / "out" / "half").exists()


def test_a_damaged_file_of_the_service_is_refused(trained, service, tmp_path):
    [weights] = (service.folder / "models").glob("*/1/adapter_model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ServiceError, match=r"adapter_model\.safetensors did not arrive as the service listed it"):
        trained.models.export("lab/practice@1", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["optimizer.safetensors", "checkpoint.json", "../0/adapter_config.json", "..", "%2e%2e"]
)
def test_only_the_files_of_the_adapter_are_handed_out(trained, service, name):
    model = trained.model()
    with pytest.raises(NotFoundError):
        service.http.run(training.save_checkpoint_file(service.http, service.address, model.id, 1, name, bytes))


def test_the_files_need_the_token(trained, service):
    model = trained.model()
    for path in ("files", "files/adapter_config.json"):
        with pytest.raises(SignInError):
            service.call("GET", f"/v1/preview/models/{model.id}/checkpoints/1/{path}", token=None)


def test_a_checkpoint_that_is_not_there_is_named(trained, service):
    model = trained.model()
    with pytest.raises(NotFoundError, match="lab/practice has no checkpoint 7"):
        service.call("GET", f"/v1/preview/models/{model.id}/checkpoints/7/files")


def test_where_the_engine_keeps_the_adapter_elsewhere_the_error_says_where(trained, service, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.service.model_registry.adapter_sums", lambda _: {})
    monkeypatch.setattr("rolloutlab.engines.local.LocalEngine.place", lambda *_: "by a server: !get it", raising=False)
    with pytest.raises(NotOfferedError, match="hands out no files of checkpoints") as error:
        trained.models.export("lab/practice@1", tmp_path / "out")
    assert error.value.hint == "the adapter of lab/practice@1 is kept by a server: !get it"


class FakeHub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files needs. seen: of each request, method, path and token."""

    seen: list[tuple[str, str, str | None]]
    commits: list[bytes]
    status = 200
    leads_to = ""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        self.seen.append(("POST", self.path, self.headers.get("Authorization")))
        if self.path.endswith("/commit/main"):
            self.commits.append(body)
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        else:
            where = f"http://{self.headers['Host']}/me/model"
            answer = {"url": where, "commitUrl": f"{where}/commit/1", "commitOid": "1", "success": True, "errors": [],
                      "warnings": []}  # fmt: skip
        self._answer(answer)

    def do_GET(self):
        self.seen.append(("GET", self.path, self.headers.get("Authorization")))
        self._answer({"id": "me/model", "private": True, "sha": "1", "siblings": [], "tags": []})

    def do_HEAD(self):
        self.do_GET()

    def _chunks(self):
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def _answer(self, value):
        content = json.dumps(value).encode()
        self.send_response(self.status)
        if self.leads_to:
            self.send_header("Location", f"{self.leads_to}{self.path}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def hub_at():
    """A hub on this machine: what it has seen, and its address."""
    handler = type("Handler", (FakeHub,), {"seen": [], "commits": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, and no stored login."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with hub_at() as (handler, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield handler


def test_an_upload_makes_a_private_repository_and_says_its_address(trained, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    done = trained.models.export("lab/practice@1", tmp_path / "out", push="me/model")
    assert repr(done).splitlines()[-1].startswith("uploaded to http://127.0.0.1:")
    assert repr(done).splitlines()[-1].endswith("/me/model (private)")
    assert {token for *_, token in hub.seen} == {"Bearer hf_secret"}
    [commit] = hub.commits
    assert b"adapter_model.safetensors" in commit
    assert b"README.md" in commit
    assert not [path for path in (tmp_path / "out").rglob("*") if b"hf_secret" in path.read_bytes()]
    base = json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"]
    assert "/" not in base  # a path of this machine


def test_without_a_token_nothing_is_sent_or_written(trained, hub, tmp_path):
    with pytest.raises(SignInError, match="there is no token of the Hugging Face hub") as error:
        trained.models.export("lab/practice@1", tmp_path / "out", push="me/model")
    assert "%env HF_TOKEN=" in error.value.hint
    assert not (tmp_path / "out").exists()
    assert hub.seen == []


def test_a_token_goes_to_no_unencrypted_address(trained, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(InputError, match="is not encrypted: the token is not sent there"):
        trained.models.export("lab/practice@1", tmp_path / "out", push="me/model")
    monkeypatch.delenv("HF_ENDPOINT")
    with pytest.raises(InputError, match="'model' is not a repository of the hub"):
        trained.models.export("lab/practice@1", tmp_path / "out", push="model")


def test_a_refused_token_keeps_the_folder(trained, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.status = 401
    with pytest.raises(SignInError, match="and was not uploaded to") as error:
        trained.models.export("lab/practice@1", tmp_path / "out", push="me/model")
    assert "hf_secret" not in str(error.value)
    assert (tmp_path / "out" / "README.md").exists()


def test_a_base_of_the_hub_is_named_in_the_metadata(trained, tmp_path, monkeypatch):
    """Only its names are metadata: the hub refuses others, and a folder's would be another model there."""
    listed = training.checkpoint_files

    async def of_hub(*given):
        return (await listed(*given)).model_copy(update={"base": "Qwen/Qwen3-0.6B"})

    monkeypatch.setattr(training, "checkpoint_files", of_hub)
    done = trained.models.export("lab/practice@1", tmp_path / "out")
    assert 'base_model: "Qwen/Qwen3-0.6B"\nbase_model_relation: adapter\n' in card_of(tmp_path / "out")
    assert "its base is on this machine only" not in repr(done)


def test_an_adapter_on_an_adapter_is_only_merged(trained, tmp_path, monkeypatch):
    listed = training.checkpoint_files

    async def on_adapter(*given):
        return (await listed(*given)).model_copy(update={"merged_base": True})

    monkeypatch.setattr(training, "checkpoint_files", on_adapter)
    with pytest.raises(InputError, match="is itself an adapter") as error:
        trained.models.export("lab/practice@1", tmp_path / "out")
    assert error.value.hint == "%export lab/practice@1 --to FOLDER --merged"
    trained.models.export("lab/practice@1", tmp_path / "out", merged=True)


def test_a_token_does_not_follow_to_another_host(trained, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with hub_at() as (other, address):
        hub.status, hub.leads_to = 307, address
        with suppress(ServiceError):
            trained.models.export("lab/practice@1", tmp_path / "out", push="me/model")
        assert {token for *_, token in hub.seen} == {"Bearer hf_secret"}
        assert {token for *_, token in other.seen} <= {None}
