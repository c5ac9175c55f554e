"""Fails each file-system call of a small loop once, in the service and in its client: nothing reported may be lost.

    writes.py [--sample N] [--only PATTERN] [--seed 0] [--side client|service] [--verbose] [--keep DIR]

The loop registers a model, samples within a budget, captures a program in two parts, scores, resumes, undoes, trains,
fine-tunes on trajectories and a file, trains with a loss of its own, opens a copy of the lab, compares, ranks, labels,
searches, exports, imports, renames, deletes and restores. Beside the service's database lie a body and a checkpoint
that it does not list, which a start moves aside as they are. The loop runs once to count the calls of each side (see
`inject`), and then once more for every call, or for a sample of them, with an OSError in the place of that call. A step
may end in a deliberate error then. After that the client opens its lab anew and does the step again, which must
succeed, as must all the rest; at the end everything is there as it was reported before and after.

Exit status 0 when nothing was lost, no step failed twice, and no error was one of Python's own.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from inject import Faults, Point
from journal import Journal, digest, halves, learned, read, stored
from processes import end, fork, gone, published, serve, strays, until, wait_for_services

from rolloutlab.errors import RolloutlabError, SamplingError
from rolloutlab.policy.checkpoints import read_checkpoint
from rolloutlab.session import Session
from rolloutlab.settings import Price, Settings
from rolloutlab.store.lab import Lab

LONGEST_RUN = 90.0
LOST = "0b7d1c9e-0000-4000-8000-00000000000e"
"""Id of a job, and of a model, of which only files are there, as beside an older database."""
TUNING = "tuning.jsonl"
COPY = "copy"
ANSWERS = ["a b c d", "x y z"]
ROWS = [{"letters": "d b a c"}, {"letters": "z y x"}]


def reward(trajectory: Any, answer: str, *_: Any) -> float:
    """Another one for each member of a group."""
    return int(trajectory.name.rpartition("/")[2]) / 4


def fails_once(trajectory: Any, answer: str, *_: Any) -> float:
    """The same, for all but one member of each group."""
    if trajectory.name.endswith("/1"):
        raise ValueError("no score")
    return reward(trajectory, answer)


def loss(new: Any, old: Any, advantage: Any, weight: Any, history: Any) -> Any:
    """Like the options' own, without a bound."""
    return -(weight * advantage * (new - old).exp()).sum() / len(new)


class Loop:
    """The steps, each journalled once it was reported as done, and done again after it was refused."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._journal = Journal(home / "journal")
        self._name = f"lab/{home.name}"
        self._without_letters = False
        self._open()

    def _open(self) -> None:
        self._lab = Session(Settings(home=self._home, prices={self._name: Price(1.0, 1.0, 1.0)}))
        self._lab._models._chosen = self._name

    def run(self) -> int:
        names = [
            "model",
            "sample",
            "capture",
            "score",
            "resume",
            "train",
            "fine_tune",
            "own_loss",
            "copy",
            "compare",
            "rank",
            "label",
            "search",
            "export",
            "import_",
            "rename",
        ]
        for name in [*names, "delete", "restore"]:
            if not self._done(name) and not self._again(name):
                return 1
        self._lab.close()
        return 0

    def _done(self, name: str) -> bool:
        try:
            getattr(self, f"_{name}")()
        except RolloutlabError as error:
            self._journal.write("refused", step=name, error=type(error).__name__, message=str(error))
        except Exception:  # noqa: BLE001 - a bug of ours, which is what is looked for
            self._journal.write("bug", step=name, error=traceback.format_exc())
        else:
            return True
        return False

    def _again(self, name: str) -> bool:
        try:
            self._lab.close()
        except Exception:  # noqa: BLE001 - as above
            self._journal.write("bug", step="close", error=traceback.format_exc())
        self._open()
        if self._done(name):
            return True
        self._journal.write("stuck", step=name)
        return False

    def _model(self) -> None:
        self._journal.write("model", id=self._lab.model(self._name).id)

    def _sample(self) -> None:
        found = self._lab.chat("letters", "user: Sort {{letters}}", n=3, over=ROWS, max_tokens=4, seed=1, budget=1)
        self._journal.trajectories(found.label, found.trajectories)

    def _capture(self) -> None:
        """Rollouts of a program, some of which fail before they sample, and then those."""
        self._without_letters = True
        with contextlib.suppress(SamplingError):
            self._lab.rollouts("agent", self._agent, over=ROWS, n=2, seed=1)
        self._without_letters = False
        made = self._lab.resume("agent", program=self._agent)
        rewards = {t.id: len(t.row["letters"]) for t in made.trajectories}
        self._journal.trajectories(made.label, made.trajectories)
        self._journal.write("rewards", label=made.label, rewards=rewards)

    async def _agent(self, row: dict[str, Any], client: Any) -> float:
        """Two turns, and a sub-agent at the same time as the second."""
        if self._without_letters and row == ROWS[1]:
            raise ValueError("no letters")
        messages = [{"role": "user", "content": row["letters"]}]
        first = await client.chat.completions.create(messages=messages, max_tokens=4)
        again = [*messages, first.choices[0].message, {"role": "user", "content": "Again"}]
        calls = [client.chat.completions.create(messages=each, max_tokens=4) for each in (again, again[-1:])]
        await asyncio.gather(*calls)
        return float(len(row["letters"]))

    def _score(self) -> None:
        found = self._lab.reward("letters", reward)
        self._journal.write("rewards", label=found.label, rewards={t.id: t.reward for t in found.trajectories})

    def _resume(self) -> None:
        self._lab.reward("letters", fails_once, say=lambda _: None)
        self._lab.reward("letters", reward, resume=True, say=lambda _: None)
        self._lab.collection("letters").undo_rewards(say=lambda _: None)
        found = self._lab.reward("letters", reward, resume=True, say=lambda _: None)
        self._journal.write("failures", label=found.label)
        self._journal.write("rewards", label=found.label, rewards={t.id: t.reward for t in found.trajectories})

    def _train(self) -> None:
        job = self._lab.train("letters", say=lambda _: None)
        self._journal.write("checkpoint", step=job.step, job=job.id)

    def _fine_tune(self) -> None:
        """On the better half of the answers, and on a file."""
        for names, where, number in (("letters", "reward > 0.2", 4), (str(self._home / TUNING), None, len(ANSWERS))):
            job = self._lab.train(names, {"batch_size": 1}, sft=True, where=where, say=lambda _: None)
            self._journal.write("checkpoint", step=job.step, job=job.id, learned=number)

    def _own_loss(self) -> None:
        job = self._lab.train("letters", loss=loss, say=lambda _: None)
        self._journal.write("checkpoint", step=job.step, job=job.id)

    def _copy(self) -> None:
        """The service of the original is not that of a copy, which has the files that it has published."""
        copy = Session(Settings(home=self._home / COPY))
        try:
            self._journal.write("copy", state=copy.service())
        finally:
            copy.close()

    def _compare(self) -> None:
        self._lab.compare("letters", reward, n=2, over=[{"letters": "b a"}])
        for each in self._lab.store.collections():  # of two steps, the later of which an earlier refusal may have moved
            if each.name.startswith("compare."):
                self._journal.trajectories(each.label, self._lab.collection(each.label).trajectories)

    def _rank(self) -> None:
        found = self._lab.collection("letters/0")
        found.rank([2, 0, 1])
        self._journal.write("rewards", label=found.label, rewards={t.id: t.reward for t in found.trajectories})

    def _label(self) -> None:
        """Take rewards of a spreadsheet, of which the first is empty."""
        path, found = self._home / "out.csv", self._lab.collection("letters")
        self._lab.files.export("letters", path, overwrite=True)
        names = [t.name for t in found.trajectories]
        path.write_text("\n".join(["trajectory,reward", f"{names[0]},", *(f"{name},0.25" for name in names[1:])]))
        found.update_rewards_from(path)
        self._journal.write("rewards", label=found.label, rewards={t.id: t.reward for t in found.trajectories})

    def _search(self) -> None:
        self._journal.write("search", hits=len(self._lab.search("letters", k=3)))

    def _export(self) -> None:
        path = self._home / "out.jsonl"
        self._lab.files.export("letters", path, overwrite=True)
        self._journal.write("export", bytes=path.stat().st_size)  # to read it would be a call that counts

    def _import_(self) -> None:
        found = self._lab.files.import_(self._home / "out.jsonl", "again")
        self._journal.trajectories(found.label, found.trajectories)

    def _rename(self) -> None:
        if "other" not in {each.name for each in self._lab.store.collections()}:  # it may have been done and refused
            self._lab.rename("again", "other", say=lambda _: None)
        self._journal.write("named", label="other", here=True)

    def _delete(self) -> None:
        if "other" in {each.name for each in self._lab.store.collections()}:
            self._lab.delete("other", say=lambda _: None)
        self._journal.write("named", label="other", here=False)

    def _restore(self) -> None:
        if "other" not in {each.name for each in self._lab.store.collections()}:
            self._lab.restore("other", say=lambda _: None)
        self._journal.write("named", label="other", here=True)


class Run:
    """One run of the loop in a folder of its own. service: the folder of one that runs, instead of one of its own."""

    def __init__(self, home: Path, side: str, target: Point | None, service: Path | None = None) -> None:
        self._home = home
        self._model = ""
        self._rewards: dict[tuple[str, str], float] = {}
        self._names: dict[str, bool] = {}
        self._side = side
        self._target = target
        self.lost: list[str] = []
        self.refused: list[str] = []
        self.points: list[Point] = []
        self.modules: list[str] = []
        self.fired = False
        home.mkdir()
        asked = [{"role": "user", "content": "Sort"}]
        lines = [{"messages": [*asked, {"role": "assistant", "content": answer}]} for answer in ANSWERS]
        (home / TUNING).write_text("".join(json.dumps(line) + "\n" for line in lines))
        (home / COPY / "service").mkdir(parents=True)
        for name in ("service.json", "token"):
            (home / COPY / "service" / name).symlink_to(home / "service" / name)
        self._shared = service is not None
        if service:
            (home / "service").symlink_to(service)

    def run(self) -> "Run":
        service = 0 if self._shared else self._serve()
        client = fork(self._side_of("client", self._loop), self._home / "client.log")
        deadline, status = time.monotonic() + LONGEST_RUN, None
        while status is None and time.monotonic() < deadline:
            if service and gone(service):  # what the error ended is started again, without one
                service = fork(partial(serve, self._home), self._home / "service.log")
            pid, code = os.waitpid(client, os.WNOHANG)
            status = code if pid else None
            time.sleep(0.01)
        if status is None:
            self.lost.append("the loop hangs")
            end(client)
        if service:
            end(service, signal.SIGTERM)
            self._restart()
        self._look()
        return self

    def _serve(self) -> int:
        for path in self._unlisted():
            path.parent.mkdir(parents=True)
            path.write_text(path.name)
        return fork(self._side_of("service", partial(serve, self._home)), self._home / "service.log")

    def _unlisted(self, aside: str = "") -> list[Path]:
        """The body of a job and the file of a checkpoint that the service's database does not list."""
        service = self._home / "service"
        return [service / "jobs" / aside / f"{LOST}.json", service / "models" / aside / LOST / "3" / "tensors"]

    def _side_of(self, side: str, work: Callable[[], int]) -> Callable[[], int]:
        """The work with the error in it where it is on this side, which writes down what calls it met."""
        if side != self._side:
            return work

        def counted() -> int:
            os.chdir(self._home)  # what removes a tree names files without their folder
            handle = os.open(self._home.parent / f"{self._home.name}.points", os.O_WRONLY | os.O_CREAT, 0o600)
            faults = Faults(self._home, self._target)
            faults.install()
            try:
                return work()
            finally:
                os.write(handle, json.dumps([faults.fired, faults.points, list(sys.modules)]).encode())

        return counted

    def _loop(self) -> int:
        wait_for_services()
        return Loop(self._home).run()

    def _restart(self) -> None:
        """Start the service once more: its start sweeps what a failure may have left."""
        service = fork(partial(serve, self._home), self._home / "service.log")
        if not until(lambda: published(self._home, service), LONGEST_RUN):
            self.lost.append("the service does not start again")
        end(service, signal.SIGTERM)
        try:
            session = Session(Settings(home=self._home))
            session.collections()
            session.close()
        except RolloutlabError as error:
            self.lost.append(f"the lab does not open again: {error}")

    def _look(self) -> None:
        points = self._home.parent / f"{self._home.name}.points"
        if points.exists() and points.stat().st_size:
            self.fired, self.points, self.modules = json.loads(points.read_text())
            self.points = [(site, i) for site, i in self.points]
        lab = Lab(self._home / "lab.db")
        self._read_journal(lab)
        for (label, key), number in self._rewards.items():
            if stored(lab, label)[int(key)].reward != number:
                self.lost.append(f"the reward of {label} {key} is not {number}")
        here = {each.name for each in lab.collections()}
        for name, wanted in self._names.items():
            if (name in here) != wanted:
                self.lost.append(f"{name} is {'not ' * wanted}there")
        lab.close()
        if not self._shared:
            for path in self._unlisted(".lost"):
                if not path.exists() or path.read_text() != path.name:
                    self.lost.append(f"{path.relative_to(self._home)} is not kept")
        self.lost += halves(self._home / "service")
        left = strays(self._home, self._shared)
        self.lost += [f"{path.relative_to(self._home)} was left behind" for path in left]
        self._read_logs()

    def _read_journal(self, lab: Lab) -> None:
        for _, fact in read(self._home / "journal"):
            match fact["kind"]:
                case "refused":
                    self.refused.append(f"{fact['step']}: {fact['error']}: {fact['message']}")
                case "bug":
                    self.lost.append(f"{fact['step']} ended in {fact['error']}")
                case "model":
                    self._model = fact["id"]
                case "stuck":
                    self.lost.append(f"{fact['step']} failed a second time: {self.refused[-1]}")
                case "rewards":
                    self._rewards |= {(fact["label"], key): reward for key, reward in fact["rewards"].items()}
                case "named":
                    self._names[fact["label"]] = fact["here"]
                case kind:
                    self._check(kind, fact, lab)

    def _check(self, kind: str, fact: dict[str, Any], lab: Lab) -> None:
        if kind == "trajectories":
            here = {key: t for label in _labels(fact["label"], lab) for key, t in stored(lab, label).items()}
            for key, expected in fact["digests"].items():
                if int(key) not in here or digest(here[int(key)]) != expected:
                    self.lost.append(f"trajectory {key} of {fact['label']} is not as it was reported")
        if kind == "checkpoint":
            try:
                read_checkpoint(self._home / "service" / "models" / self._model / str(fact["step"]))
            except RolloutlabError as error:
                self.lost.append(f"checkpoint {fact['step']}: {error}")
            number = learned(self._home / "service", fact["job"])
            if number != fact.get("learned", number):
                self.lost.append(f"the job of checkpoint {fact['step']} learned {number} of {fact['learned']} answers")
        if kind == "failures" and (left := lab.scorings.failures(lab.find(fact["label"]))):
            self.lost.append(f"{left[0].trajectory.name} is scored and failed: {left[0].summary}")
        if kind == "copy" and "not running" not in fact["state"]:
            self.lost.append(f"a copy takes the service of its original: {fact['state']}")
        if kind == "export" and fact["bytes"] != (self._home / "out.jsonl").stat().st_size:
            self.lost.append("the exported file is not as it was reported")

    def _read_logs(self) -> None:
        for log in self._home.glob("*.log"):
            for raised in re.findall(r"(?ms)^Traceback.*?^(\S.*?)$", log.read_text(errors="replace")):
                self.lost.append(f"a traceback in {log.name}: {raised}")


def _labels(label: str, lab: Lab) -> list[str]:
    """The collection, also under the name that it got later."""
    return [each.label for each in lab.collections() if each.name in {label.partition(":")[0], "other"}]


def sweep(side: str, options: argparse.Namespace, folder: Path, counts: Counter[str]) -> bool:
    """Run the loop for each call of one side; whether all went well. Clients share a service."""
    clean = Run(folder / side, side, None).run()
    print(f"{side}: {len(clean.points)} calls from {len({site for site, _ in clean.points})} lines", flush=True)
    well = report(None, clean, options)
    for name in clean.modules:  # here, and not again in every fork
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    targets = sorted(clean.points, key=lambda point: point[1])  # every line once, before any line a second time
    targets = [point for point in targets if re.search(options.only, point[0])]
    if options.sample and options.sample < len(targets):
        targets = random.Random(options.seed).sample(targets, options.sample)
    shared = folder / side if side == "client" else None
    service = fork(partial(serve, shared), folder / "service.log") if shared else 0
    for i, target in enumerate(targets):
        run = Run(folder / f"{side}-{i}", side, target, shared and shared / "service").run()
        counts["calls that failed" if run.fired else "calls that were not met again"] += 1
        counts["steps that were refused"] += len(run.refused)
        well &= report(target, run, options)
        if not run.lost:
            shutil.rmtree(folder / f"{side}-{i}")
    if service:
        end(service, signal.SIGTERM)
    return well


def report(target: Point | None, run: Run, options: argparse.Namespace) -> bool:
    where = f"{target[0]} #{target[1]}" if target else "no error"
    if options.verbose:
        print(f"{where}: {'; '.join(run.refused) or 'absorbed'}", flush=True)
    for loss in run.lost:
        print(f"LOST with {where}: {loss}", flush=True)
    return not run.lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="calls of each side; all without it")
    parser.add_argument(
        "--only", default="", help="calls of lines that match this pattern, say service/(loss|uploaded)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=["client", "service"], help="both without it")
    parser.add_argument("--verbose", action="store_true", help="print what was refused for every call")
    parser.add_argument("--keep", type=Path, help="a new folder for the runs; those that lost something stay")
    options = parser.parse_args()
    begun, counts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = options.keep or Path(name)
        folder.mkdir(exist_ok=True)
        sides = [options.side] if options.side else ["client", "service"]
        well = all([sweep(side, options, folder, counts) for side in sides])  # noqa: C419 - both sides in any case
    print("\n".join(f"{count:8} {name}" for name, count in counts.items()))
    print(f"{'nothing was lost' if well else 'see above'}; seed {options.seed}, {time.monotonic() - begun:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
