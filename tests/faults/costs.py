"""Small inputs that would cost much: none may take more than its bound, or hold up the service.

    costs.py [--tries 12] [--seed 0]

Files and texts of a random size, up to some megabytes, are read each in a process of its own whose memory and
processor time the operating system limits: it must end with values, or with a deliberate error. Then a service gets
jobs of up to 300 turns whose texts are not those of their tokens, of which each is cancelled at a random moment, and
at last is stopped in the middle of one. Exit status 0 if all ended so.
"""

import argparse
import gzip
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from processes import end, fork, published, serve, until, wait_for_services

from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.reasoning import without_empty_thought, without_thought
from rolloutlab.errors import RolloutlabError
from rolloutlab.policy import harmony
from rolloutlab.policy.call_forms import _FORMS
from rolloutlab.policy.model import load_policy
from rolloutlab.policy.rendering import Renderer
from rolloutlab.sampling.data_files import read_records
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.service.endpoints.body import InvalidBodyError, parse
from rolloutlab.settings import Settings
from rolloutlab.trajectories.files import jsonl

MEMORY, SECONDS = 3 << 30, 60
LONGEST_START, LONGEST_STOP, LONGEST_CANCEL = 120.0, 60.0, 20.0


def lists(random: random.Random) -> bytes:
    return b"[" + random.choice([b"[],", b"{},", b'"",', b'{"a":0},']) * random.randrange(1 << 20, 1 << 25) + b"0]"


def read_json(random: random.Random, folder: Path) -> None:
    path = folder / random.choice(["a.json", "a.jsonl", "a.jsonl.gz"])
    text = random.choice([b'{"a": %s}', b'{"a": 1}\n{"a": %s}\n', b'[{"a": %s}]']) % lists(random)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    for _ in random.choice([read_records, jsonl.read_documents])(path):
        pass


def read_depth(random: random.Random, folder: Path) -> None:
    path, depth = folder / "a.jsonl", random.randrange(1000, 1 << 22)
    path.write_bytes(random.choice([b"[", b'{"a":', b'[{"a":']) * depth + b"9" * random.randrange(1, 1 << 20))
    for _ in read_records(path):
        pass


def read_blank(random: random.Random, folder: Path) -> None:
    path = folder / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}' + b"\n" * random.randrange(1 << 20, 1 << 24) + b'{"a": 2}', 1))
    assert len(list(read_records(path))) == 2


def read_parquet(random: random.Random, folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    text = random.choice("xyz ") * random.randrange(1, 1 << 20)
    column = pyarrow.DictionaryArray.from_arrays([0] * random.randrange(1, 4000), [text])
    if random.random() < 0.5:
        column = pyarrow.ListArray.from_arrays([0, len(column)], column)
    parquet.write_table(pyarrow.table({"a": column}), folder / "a.parquet", compression="zstd")
    for _ in read_records(folder / "a.parquet"):
        pass


def read_body(random: random.Random, folder: Path) -> None:
    parse(ChatRequest, b'{"model": "practice", "messages": %s}' % lists(random))


def read_rows(random: random.Random, folder: Path) -> None:
    """A million tiny rows or more, of a file of some kilobytes."""
    kinds = {
        "a.jsonl.gz": (b"", b'{"a":1}\n', b""),
        "a.csv.gz": (b"a\n", b"1\n", b""),
        "a.json.gz": (b"[", b"1,", b"1]"),
    }
    name = random.choice([*kinds])
    begin, row, end = kinds[name]
    path, rows = folder / name, random.choice([b"\n", row]) if name != "a.json.gz" else row
    with gzip.open(path, "wb", 1) as file:
        file.write(begin)
        for _ in range(random.randrange(1, 60)):
            file.write(rows * 100_000)
        file.write(end)
    rows_of(path)


def read_repeated(random: random.Random, folder: Path) -> None:
    """One row of Parquet that has a long text thousands of times."""
    import pyarrow
    import pyarrow.parquet as parquet

    n, text = random.randrange(1, 4000), "x" * random.randrange(1, 1 << 20)
    texts = pyarrow.DictionaryArray.from_arrays([0] * n, [text])
    column = random.choice(
        [
            lambda: pyarrow.ListArray.from_arrays([0, n], texts),
            lambda: pyarrow.FixedSizeListArray.from_arrays(texts, n),
            lambda: pyarrow.MapArray.from_arrays([0, n], list(map(str, range(n))), texts),
        ]
    )()
    parquet.write_table(pyarrow.table({"a": column}), folder / "a.parquet", compression="zstd")
    rows_of(folder / "a.parquet")


def read_answer(random: random.Random, folder: Path) -> None:
    """Texts of a policy that begin what never ends."""
    unit = random.choice(
        ["<think>", "<think", "think", " ", "\n\t", "<|channel|>", "<parameter=a>", "<arg_key>a</arg_key>"]
    )
    text = random.choice(["", "<", "<think>", "<function=f>", "to="]) + unit * (200_000 // len(unit)) + "!"
    harmony.parse(text + random.choice(["", "<|message|>a<|end|>"]))
    without_thought(text)
    without_empty_thought(text)
    for form in _FORMS:
        form.split(f"{form.opening}{text}{random.choice(['', '</parameter></function>'])}{form.closing}")


def render_endlessly(policy: Any, random: random.Random, folder: Path) -> None:
    depth = random.randrange(2, 6)
    policy.tokenizer.chat_template = "{% for a in range(90000) %}" * depth + "{% endfor %}" * depth
    render(policy, random, folder)


def render(policy: Any, random: random.Random, folder: Path) -> None:
    character = random.choice(["a", " ", "\n", "<", "{", "é", "<think>", "</think>", "<|im_end|>"])
    message = {"role": "user", "content": character * random.randrange(1, 200_000)}
    request = ChatRequest.model_validate({"model": "practice", "messages": [message]})
    Renderer(policy.tokenizer, policy.end_ids).prompt(request.messages)


def limited(read: Callable[[random.Random, Path], None], seed: int, folder: Path) -> int:
    """Read in this process within the limits. MEMORY is of what comes on top of what is there."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with suppress(RolloutlabError, InvalidBodyError):
        read(random.Random(seed), folder)
    return 0


def job(policy: Any, random: random.Random, model_id: str) -> dict[str, Any]:
    """A job of one talk, whose answers are of other texts than their tokens, or of texts that are elsewhere in it."""
    ids = policy.tokenizer(random.choice(["another text", "question 1", "yes"]), add_special_tokens=False)["input_ids"]
    content = [{"token": "", "token_id": token_id, "logprob": -1.0, "top_logprobs": []} for token_id in ids]
    items: list[dict[str, Any]] = []
    for i in range(random.randrange(100, 300)):
        message = {"role": "assistant", "content": f"answer {i}"}
        items.append({"role": "user", "content": f"question {i}"})
        items.append({"finish_reason": "length", "index": 0, "message": message, "logprobs": {"content": content}})
    group = {"trajectories": [{"messages_and_choices": items, "reward": 1.0}]}
    return {"model_id": model_id, "trajectory_groups": [group]}


def harass(policy: Any, random: random.Random, home: Path, tries: int) -> list[str]:
    """Cancel jobs in the middle, and stop the service in the middle of the last one; what went wrong."""
    home.mkdir()
    log, wrong = home / "service-log", list[str]()
    pid = fork(partial(serve, home), log)
    if not until(lambda: published(home, pid), LONGEST_START):
        end(pid)
        return ["the service did not start"]
    wait_for_services()
    http = HttpClient()
    embedded = Embedded(Settings(home=home), http)
    address = embedded.address()
    call = partial(_call, http, address)
    wanted = {"project": "lab", "name": "costs", "base_model": "practice", "return_existing": True}
    model_id = call("POST", "/v1/preview/models", wanted)["id"]
    for number in range(tries + 1):
        job_id = call("POST", "/v1/preview/training-jobs", job(policy, random, model_id))["id"]
        time.sleep(random.random() * 2)
        if number == tries:
            break
        call("POST", f"/v1/preview/training-jobs/{job_id}/cancel")
        if not until(partial(_is_over, call, job_id), LONGEST_CANCEL):
            wrong.append(f"job {job_id} was cancelled and does not end")
    begun = time.monotonic()
    end(pid, signal.SIGTERM)
    if (took := time.monotonic() - begun) > LONGEST_STOP:
        wrong.append(f"the service took {took:.0f} s to stop")
    embedded.close()
    http.close()
    return wrong


def _is_over(call: Callable[..., Any], job_id: str) -> bool:
    return call("GET", f"/v1/preview/training-jobs/{job_id}")["status"] in {"cancelled", "succeeded", "failed"}


def _call(http: Any, address: Any, method: str, path: str, body: Any = None) -> Any:
    url, token = f"{address.base_url}{path}", address.token
    return http.run(http.request(method, url, token=token, **({} if body is None else {"json": body})))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = load_policy("practice")
    reads = [read_json, read_depth, read_blank, read_parquet, read_body, partial(render, policy)]
    reads += [read_rows, read_repeated, read_answer, partial(render_endlessly, policy)]
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for number in range(options.tries * len(reads)):
            read, seed = reads[number % len(reads)], options.seed * 10_000 + number
            home = Path(folder) / str(number)
            home.mkdir()
            pid = fork(partial(limited, read, seed, home), log)
            if status := end(pid, 0):
                wrong.append(f"{getattr(read, '__name__', 'render')} of seed {seed}: status {status}")
        wrong += harass(policy, random.Random(options.seed), Path(folder) / "lab", options.tries // 3)
        print(
            *wrong,
            f"{options.tries * len(reads)} inputs, {options.tries // 3} cancelled jobs: {len(wrong)} wrong",
            sep="\n",
        )
        if wrong:
            print(log.read_text(errors="replace")[-4000:])
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
