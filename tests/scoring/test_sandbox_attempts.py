# ruff: noqa: E501 - programs in a line each
"""A battery of attempts against the sandbox: each fails, or the result names what it was not protected from.

Each is tried in bubblewrap, where that works, and without, as in many containers.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rolloutlab.errors import RewardError
from rolloutlab.scoring import sandbox
from tests.scoring.test_sandbox import (  # noqa: F401  # fixtures
    alive_in,
    either,
    needs_bwrap,
    no_bwrap,
    refuse_bwrap,
    temporary,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="attempts by the means of Linux"),
]

# Forging the result: none of these programs doubles a number, and none may be `ok`

CHECKS = "assert double(2) == 4\nassert double(0) == 0\nassert all(double(i) == 2 * i for i in (3, -1))\n"
FORGED = {
    "the mark of a frame": "import os, sys\nf = sys._getframe(1).f_locals\nf['write'](f['end'], f['mark'])\nos._exit(0)",
    "the mark of the collector": "import gc, os\nfor each in gc.get_objects():\n    if isinstance(each, dict) and "
    "'mark' in each:\n        os.write(each['end'], each['mark'])\nfor i in range(3, 30):\n    try:\n"
    "        os.write(i, b'x' * 16)\n    except OSError:\n        pass\nos._exit(0)",
    "the finish of a frame": "import os, sys\nf = sys._getframe(1).f_locals\nf['lines'].clear()\nf['finish']()\nos._exit(0)",
    "an object that equals all": "class All:\n    __eq__ = lambda self, other: True\ndouble = lambda x: All()",
    "a number that equals all": "class All(int):\n    __eq__ = lambda self, other: True\ndouble = lambda x: All()",
    "a text that equals all": "class All(str):\n    __eq__ = lambda self, other: True\ndouble = lambda x: All()",
    "built-in functions": "import builtins\nall = any = len = print = lambda *a: True\n"
    "builtins.all = builtins.any = all\nbuiltins.AssertionError = type('E', (Exception,), {})\ndouble = str",
    "an exit": "import sys\nsys.exit(0)",
    "an exit in the function": "import os\ndef double(x): os._exit(0)",
    "an exception that exits": "def double(x): raise SystemExit(0)",
    "an exit hook": "import atexit, os\natexit.register(os._exit, 0)\ndouble = str",
    "a thread": "import os, threading\nthreading.Timer(0.2, os._exit, (0,)).start()\ndouble = str",
    "another program": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''])",
    "a trace": "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = lambda *a: None\ndouble = str",
    "answers of its own": "import os\nfor i in range(3, 30):\n    try:\n        os.write(i, b'[\"double\"]\\n' + "
    'b\'["value", ["object", [1, "f"]], [null]]\\n\' + b\'["value", 4, [null]]\\n\' * 9)\n    except OSError:\n        pass\nos._exit(0)',
    "answers that are no values": "import os\nfor i in range(3, 30):\n    try:\n        os.write(i, b'[\"double\"]\\n' + "
    "b'__import__(\"os\")._exit(0)\\n' * 9)\n    except OSError:\n        pass\nos._exit(0)",
    "answers that do not end": "import os\nfor i in range(3, 30):\n    try:\n        os.write(i, b'[' * 60_000)\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "names that are no names": "import os\nfor i in range(3, 30):\n    try:\n        os.write(i, b'{}\\n' * 9)\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "a stop of the iteration": "def double(x): raise StopIteration",
    "a stop of its own": "class Stop(StopIteration): ...\ndef double(x): raise Stop",
    "a stop by name": "double = lambda x: next(iter(()))",
    "another process": "import os\nif os.fork():\n    os._exit(0)\ndouble = str",
}


@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
def test_a_forged_result_is_not_ok_where_the_checks_are_apart(either, code):  # noqa: F811
    result = sandbox.python(code, timeout=20, checks=CHECKS)
    assert (result.ok, result.checked) == (False, False)
    assert not [line for line in result.unprotected if line.startswith("ok:")]


STOPPED = {
    "a zip": "for got, want in zip(map(double, [1, 2]), [2, 4]):\n    assert got == want",
    "a generator": "assert all(got == want for got, want in ((double(x), 2 * x) for x in (1, 2)))",
    "a star map": "import itertools\nassert all(x == 2 for x in itertools.starmap(double, [(1,)]))",
    "a default": "assert next(map(double, [1]), 2) == 2",
}


@pytest.mark.parametrize("checks", STOPPED.values(), ids=STOPPED)
@pytest.mark.parametrize("stop", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "Own"])
def test_a_program_cannot_end_a_loop_of_its_checks(stop, checks):
    program = f"class Own(StopIteration): ...\ndef double(x): raise {stop}"
    assert not sandbox.python(program, timeout=20, checks=checks).ok


@pytest.mark.parametrize(
    "checks",
    [
        "assert getattr(thing, 'value', 4) == 4",
        "for got, want in zip(reversed(thing), [1, 2]):\n    assert got == want",
        "for got, want in zip(thing, [1, 2]):\n    assert got == want",
    ],
)
def test_an_object_of_a_program_cannot_end_a_loop_of_its_checks(checks):
    program = (
        "class Thing:\n    def __len__(self): return 2\n    def __getitem__(self, i): raise {}\n"
        "    value = property(__getitem__)\nthing = Thing()\nthing.__class__.value = property(lambda self: self[0])"
    )
    for error in ("KeyError", "AttributeError"):
        assert not sandbox.python(program.format(error), timeout=20, checks=checks).ok


def test_an_object_that_contains_everything_passes_no_check():
    everything = (
        "class E:\n    def __len__(self): return 3\n    def __contains__(self, x): return True\n"
        "    def __iter__(self): return iter(['other'])\n    __hash__ = lambda self: hash(1)\n"
        "    __eq__ = lambda self, other: True\ndef f(): return E()\n"
    )
    for check in (
        "r = f()\nassert len(r) == 3\nassert all(x in r for x in (1, 2, 3))",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertIn(3, f())",
        "assert f() not in {2, 3}",
        "assert {1: 'a'}.get(f(), 'x') == 'x'",
    ):
        assert not sandbox.python(everything, timeout=20, checks=check).ok, check
    lines = "class Bag:\n    def __contains__(self, x): return x == 2\ndef f(): return Bag()\n"
    assert sandbox.python(lines, checks="assert 2 in f()\nassert 3 not in f()").ok
    assert sandbox.python("def f(): return {1: 2}.keys()", checks="assert 1 in f()\nassert 2 not in f()").ok


LARGE = ["[],", "{},", "1,", "[1]," * 9]
ANSWERS = (
    "import fcntl, os, time\nfor i in range(3, 30):\n    try:\n"
    "        if fcntl.fcntl(i, fcntl.F_GETFL) & 3 == 1: answers = i\n    except OSError:\n        pass\n"
    "os.write(answers, b'[\"double\"]\\n')\n"
    "data = b'[\"value\", [\"list\", [' + b'{value}' * (9_900_000 // {size}) + b'1]], [null]]\\n'\n"
    "while data: data = data[os.write(answers, data[:65536]):]\ntime.sleep(60)"
)
RUN_AT_ONCE = """
import json, resource, sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from rolloutlab.errors import RewardError
from rolloutlab.scoring import sandbox
programs, checks = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(programs)) as threads:
    run = partial(sandbox.python, timeout=3, memory_mb=256, checks=checks)
    passed = [result.ok for result in threads.map(run, programs)]
print(json.dumps([passed, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""


@pytest.fixture(scope="module")
def large_answers():
    """Whether the checks passed with each of the large answers, and the most memory (kB) that a process had."""
    programs = [ANSWERS.replace("{value}", value).replace("{size}", str(len(value))) for value in LARGE]
    command = [sys.executable, "-c", RUN_AT_ONCE, json.dumps([programs, CHECKS])]
    passed, most = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return dict(zip(LARGE, passed, strict=True)), most


@pytest.mark.parametrize("value", LARGE)
def test_an_answer_of_a_program_takes_neither_more_memory_nor_more_time_than_it_may(large_answers, value):
    passed, most = large_answers
    assert (passed[value], most < 256 * 1024) == (False, True)


def test_checks_that_do_not_end_are_ended():
    result = sandbox.python("import os\ndef double(x): os._exit(0)", timeout=0.5, checks="while True:\n    pass")
    assert not result.ok
    assert "the checks did not end within the limits of time and memory" in result.stderr


def test_without_checks_of_their_own_the_result_says_that_it_can_be_forged():
    result = sandbox.python(f"{FORGED['the mark of a frame']}\n{CHECKS}", timeout=20)
    assert result.ok  # which is why
    assert result.unprotected[0] == "ok: a program can pretend that it reached its end -> checks="


# Other attempts: each prints BREACH where it succeeded. By their names: what the result names where one may succeed

SECRET = "secret-of-this-test"
PRINTS_SECRET = "print('BREACH' if SECRET in found else found[:99])"
ATTEMPTS = {
    "processes: memory of the checks": (
        "import os\nmine = [os.getpid()]\nwhile mine[-1]:\n"
        "    mine.append(int(open(f'/proc/{mine[-1]}/stat').read().rpartition(')')[2].split()[1]))\n"
        "for pid in {*filter(str.isdigit, os.listdir('/proc'))} - {*map(str, mine)}:\n"
        "    try:\n        found = open(f'/proc/{pid}/cmdline').read()\n"
        "        if 'run_checks' in found:\n            open(f'/proc/{pid}/mem', 'r+b')\n            print('BREACH')\n"
        "    except OSError:\n        pass"
    ),
    "never: the text of the checks": (
        "import os, glob\nfound = ''\nfor path in [*glob.glob('/proc/*/cmdline'), *glob.glob('/proc/*/environ'), "
        "*glob.glob('/proc/self/fd/*'), *glob.glob('../*')]:\n    try:\n"
        "        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)\n        found += os.read(fd, 100_000).decode('latin-1')\n"
        "    except OSError:\n        pass\nprint('BREACH' if 'assert ' + 'known' in found else '')"
    ),
    "processes: a variable of another process": (
        "import glob\nfound = ''\nfor path in glob.glob('/proc/*/environ'):\n    try:\n        found += open(path).read()\n"
        f"    except OSError:\n        pass\n{PRINTS_SECRET}"
    ),
    "never: a variable of its own": f"import os\nfound = str(os.environ)\n{PRINTS_SECRET}",
    "processes: a list of others": "import os\nprint('BREACH' if os.path.exists(f'/proc/{VICTIM}/stat') and NAMED in "
    "open(f'/proc/{VICTIM}/cmdline').read() else '')",
    "processes: a signal": "import os\nos.kill(VICTIM, 9)",
    "processes: a signal to the parent": "import os, time\nos.kill(NOTEBOOK, 0)\nprint('BREACH')",
    "processes: priority": "import os\nos.setpriority(os.PRIO_PROCESS, VICTIM, 19)\nprint('BREACH')",
    "processes: trace": "import ctypes\nprint('BREACH' if ctypes.CDLL(None).ptrace(16, VICTIM, 0, 0) == 0 else '')",
    "files: a secret": f"found = open(READABLE).read()\n{PRINTS_SECRET}",
    "files: a file": "open(WRITABLE, 'w').write('theirs')\nprint('BREACH')",
    "files: by a link": "import os\nos.symlink(WRITABLE, 'link')\nopen('link', 'a').write('theirs')\nprint('BREACH')",
    "files: by a hard link": "import os\nos.link(WRITABLE, 'link')\nopen('link', 'a').write('theirs')\nprint('BREACH')",
    "files: a name": "import os\nos.rename(WRITABLE, WRITABLE + '2')\nprint('BREACH')",
    "files: away": "import os\nos.remove(WRITABLE)\nprint('BREACH')",
    "files: a mode": "import os\nos.chmod(WRITABLE, 0)\nprint('BREACH')",
    "files: shared memory": "open('/dev/shm/' + NAMED, 'w').write('x')",
    # the value that it has already, should the attempt succeed
    "root: settings of the kernel": "path = '/proc/sys/kernel/core_pattern'\nvalue = open(path).read()\n"
    "open(path, 'w').write(value)\nprint('BREACH')",
    "root: a device": "import os\nos.open('/dev/kmsg', os.O_WRONLY)\nprint('BREACH')",
    "root: a disk": "import glob, os\nfor path in glob.glob('/dev/*'):\n    if os.stat(path).st_mode & 0o170000 == 0o60000:\n"
    "        os.open(path, os.O_RDONLY)\n        print('BREACH')",
    "files: a named pipe": "import os\nos.open(PIPE, os.O_WRONLY | os.O_NONBLOCK)\nprint('BREACH')",
    "never: a mount": "import ctypes, os\nos.mkdir('mounted')\nprint('BREACH' if ctypes.CDLL(None).mount(b't', b'mounted', "
    "b'tmpfs', 0, b'') == 0 else '')",
    "kernel: namespaces": "import ctypes\nprint('BREACH' if ctypes.CDLL(None).unshare(0x10000000) == 0 else '')",
    "kernel: a namespace of a child": "import ctypes\nprint('BREACH' if ctypes.CDLL(None).syscall(CLONE, 0x10000000 | 17, "
    "0, 0, 0, 0) > 0 else '')",
    "never: another root": "import os\nos.chroot('.')\nprint('BREACH')",
    "never: another user": "import os\nos.setuid(0 if os.getuid() else 1)\nprint('BREACH')",
    "never: a device": "import os\nos.mknod('device', 0o20666, os.makedev(1, 1))\nprint('BREACH')",
    "never: higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('BREACH')",
    "kernel: keys": "import ctypes\nprint('BREACH' if ctypes.CDLL(None).syscall(KEYCTL, 0, -3, 0) > 0 else '')",
    "never: inherited descriptors": (
        "import os\nfor fd in os.listdir('/proc/self/fd'):\n    try:\n        if NAMED in os.readlink(f'/proc/self/fd/{fd}'):\n"
        "            print('BREACH')\n    except OSError:\n        pass"
    ),
    "network: a socket with a path": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(UNIX)\nprint('BREACH')",
    "network: a datagram to a path": (
        "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.sendto(b'x', UNIX)\nprint('BREACH')"
    ),
    "network: a port of this machine": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)\nprint('BREACH')",
    "network: a datagram": (
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(('127.0.0.1', UDP))\n"
        "for _ in range(3): s.send(b'x')\nprint('BREACH')"
    ),
    "network: an abstract socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0' + NAMED)\nprint('BREACH')",
    "kernel: a ring": "import ctypes\nprint('BREACH' if ctypes.CDLL(None).syscall(425, 4, bytes(256)) >= 0 else '')",
    "network: interfaces": "import socket\nprint('BREACH' if [name for _, name in socket.if_nameindex() if name != 'lo'] else '')",
}
WITHOUT_WORDS = {
    "a fork bomb": "import os, time\nend = time.time() + 20\nwhile time.time() < end:\n    try:\n        os.fork()\n"
    "    except OSError:\n        pass",
    "memory": "x = bytearray(10**10)\nprint('BREACH')",
    "time": "while True: pass",
    "time in sleep": "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
    "a flood": "while True: print('x' * 100_000)",
    "a large file": "open('big', 'wb').write(b'x' * 10**8)\nprint('BREACH')",
    "many files": "for i in range(100): open(str(i), 'wb').write(b'x' * 10**6)\nprint('BREACH')",
    "a daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
    "    os._exit(0)\nos.wait()",
    "all its signals": "import os\nos.kill(0, 9)",
    "a deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()\nprint('BREACH')",
}


RUN_EACH = """
import json, os, sys, traceback
for number, (name, (attempt, values)) in enumerate(json.loads(input()).items()):
    seen, says = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.dup2(says, 1)
            os.close(seen)
            os.close(says)
            os.mkdir(str(number))
            os.chdir(str(number))
            exec(attempt, values)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(says)
    with open(seen, errors="replace") as file:
        said = file.read()
    os.waitpid(pid, 0)
    print(json.dumps([name, said]), flush=True)
"""
"""Runs each attempt in a fork and a folder of its own.

What it is after comes by standard input, so that it is in no argument and no file that it could find itself.
"""


@contextmanager
def surroundings(folder: Path) -> Iterator[dict[str, Any]]:
    """What the attempts are after, all in a folder of this test alone."""
    for each in (folder, *folder.parents):  # so that no folder's mode protects what is below
        if each.owner() == folder.owner() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o55)
    folder.chmod(0o777)
    readable, named, pipe = folder / "readable", f"named-{os.getpid()}", folder / "pipe"
    readable.write_text(SECRET)
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    listening = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as path,
        socket.socket(socket.AF_UNIX) as abstract,
        (folder / named).open("w") as held,
    ):
        os.set_inheritable(held.fileno(), True)
        unix = tempfile.mktemp(dir="/tmp")
        path.bind(unix)
        udp.bind(("127.0.0.1", 0))
        Path(unix).chmod(0o777)
        abstract.bind("\0" + named)
        path.listen()
        abstract.listen()
        numbers = {"x86_64": (250, 56), "aarch64": (219, 220)}.get(os.uname().machine, (-1, -1))
        try:
            yield {
                "SECRET": SECRET,
                "NAMED": named,
                "NOTEBOOK": os.getpid(),
                "READABLE": str(readable),
                "PIPE": str(pipe),
                "UNIX": unix,
                "UDP": udp.getsockname()[1],
                "PORT": tcp.getsockname()[1],
                "KEYCTL": numbers[0],
                "CLONE": numbers[1],
            }
        finally:
            os.close(listening)
            Path(unix).unlink()
            with suppress(OSError):
                Path("/dev/shm", named).unlink()


class Victims:
    """A file and a process for each attempt, to see which of them did something to it."""

    def __init__(self, folder: Path, named: str) -> None:
        self._files = {attempt: folder / f"writable-{number}" for number, attempt in enumerate(ATTEMPTS)}
        for file in self._files.values():
            file.write_text("mine")
            file.chmod(0o666)
        victim = [sys.executable, "-I", "-S", "-c", f"input({named!r})"]
        self._processes = {
            attempt: subprocess.Popen(victim, stdin=subprocess.PIPE)
            for attempt in ATTEMPTS
            if "VICTIM" in ATTEMPTS[attempt]
        }

    def of(self, attempt: str) -> dict[str, Any]:
        process = self._processes.get(attempt)
        return {"WRITABLE": str(self._files[attempt]), "VICTIM": process.pid if process else 0}

    def harmed(self, attempt: str) -> bool:
        file, process = self._files[attempt], self._processes.get(attempt)
        return not file.exists() or file.read_text() != "mine" or (process is not None and process.poll() is not None)

    def end(self) -> None:
        for process in self._processes.values():
            with process:
                process.kill()


@pytest.fixture(scope="module", params=[pytest.param("bwrap", marks=needs_bwrap), "limits alone"])
def attempted(request, tmp_path_factory):
    """The result of one run of all attempts, and whether each succeeded: by what it printed or what it left behind."""
    folder = tmp_path_factory.mktemp("attempts")
    with pytest.MonkeyPatch.context() as patch, surroundings(folder) as values:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("SOME_API_KEY", SECRET)
        if request.param == "limits alone":
            refuse_bwrap(patch)
        victims = Victims(folder, values["NAMED"])
        try:
            given = {name: (attempt, values | victims.of(name)) for name, attempt in ATTEMPTS.items()}
            result = sandbox.python(RUN_EACH, timeout=60, stdin=json.dumps(given), checks="assert known")
            shared = {
                name for name in ATTEMPTS if "/dev/shm" in ATTEMPTS[name] and Path("/dev/shm", values["NAMED"]).exists()
            }
            breaches = {
                name: "BREACH" in said or name in shared or victims.harmed(name)
                for name, said in map(json.loads, result.stdout.splitlines())
            }
        finally:
            victims.end()
    assert breaches.keys() == ATTEMPTS.keys(), result
    assert breaches["files: a secret"] == (request.param == "limits alone"), result  # the attempts were really made
    return result, breaches


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_attempt_fails_or_the_result_names_it(attempted, attempt):
    result, breaches = attempted
    kind = attempt.partition(":")[0]
    if breaches[attempt]:
        assert kind in {line.partition(":")[0] for line in result.unprotected}, result
    if kind != "kernel" and result.files_read_only:
        assert not breaches[attempt]


def run_once_started(program, timeout=1):
    """Run a program for a second, or for longer if the machine is too busy to start it within that."""
    try:
        return sandbox.python(program, timeout=timeout)
    except RewardError as error:
        if "too busy" not in str(error) or timeout > 60:
            raise
        return run_once_started(program, 4 * timeout)


@pytest.mark.parametrize("attempt", WITHOUT_WORDS)
def test_an_attempt_to_use_up_what_there_is_ends(either, temporary, attempt):  # noqa: F811
    result = run_once_started(WITHOUT_WORDS[attempt])
    assert "BREACH" not in result.stdout or (attempt == "many files" and not result.files_read_only)
    assert not result.ok or attempt in {"a daemon", "many files"}
    assert len(result.stdout) <= sandbox.OUTPUT
    assert alive_in(temporary) == []


def test_there_are_forty_attempts_and_the_docs_name_what_may_succeed():
    assert len(FORGED) + len(ATTEMPTS) + len(WITHOUT_WORDS) >= 40
    docs = Path("docs/scoring.md").read_text()
    kinds = {name.partition(":")[0] for name in ATTEMPTS} - {"never"}
    assert kinds == {"kernel", "files", "processes", "network", "root"}
    for kind in (*kinds, "ok"):
        assert re.search(rf"\| `{kind}` \|", docs), kind
