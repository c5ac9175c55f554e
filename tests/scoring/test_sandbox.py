"""The sandbox: what a program gets and returns, and hostile programs, each of which ends with everything it started.

Most run in bubblewrap, where that works, and with limits alone, as where it does not.

The bombs stop by themselves after some seconds, should the sandbox ever fail to end them.
"""

import os
import re
import selectors
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rolloutlab.errors import InputError, RewardError
from rolloutlab.scoring import sandbox

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the sandbox needs fork"),
]
FORK_BOMB = """
import os, time
end = time.time() + 20
while time.time() < end:
    try:
        os.fork()
    except OSError:
        pass
"""
MEMORY_OF_MANY = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(100 * 2**20)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(20)
        os._exit(0)
time.sleep(20)
"""
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            print("still here", flush=True)
    os._exit(0)
os.wait()
print("the end")
"""


def ended_by_time(program: str, reached: Callable[[sandbox.SandboxResult], bool]) -> sandbox.SandboxResult:
    """A program that never ends, with more time each try until it got as far: a busy machine starts one in seconds."""
    for seconds in (0.5, 2, 8, 32):
        result = sandbox.python(program, timeout=seconds)
        if reached(result):
            return result
    raise AssertionError(result)


def alive_in(folder: Path) -> list[str]:
    """The processes that work in a folder or below it."""
    alive = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder) in str((process / "cwd").readlink()):
                alive.append(process.name)
    return alive


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary folders of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


ISOLATION = sandbox._isolation(shutil.which("bwrap")) if hasattr(os, "fork") else None
NO_BWRAP = f"bubblewrap does not work here: {ISOLATION.problem}" if ISOLATION and not ISOLATION.wrapper else ""
needs_bwrap = pytest.mark.skipif(bool(NO_BWRAP), reason=NO_BWRAP)


def refuse_bwrap(patch: pytest.MonkeyPatch) -> None:
    """As on a system without bubblewrap."""
    found = sandbox._isolation
    patch.setattr(sandbox, "_isolation", lambda _: found(None))
    patch.setattr(sandbox, "_say_once", lambda _: None)


@pytest.fixture
def no_bwrap(monkeypatch):
    refuse_bwrap(monkeypatch)


@pytest.fixture(params=[pytest.param("bwrap", marks=needs_bwrap), "limits alone"])
def either(request):
    """With bubblewrap, where it works, and without."""
    if request.param == "limits alone":
        request.getfixturevalue("no_bwrap")


def test_a_program_returns_what_it_prints_and_reads_its_standard_input(either):
    result = sandbox.python("import sys\nprint(input())\nprint('oops', file=sys.stderr)", stdin="from a row\n")
    assert (result.stdout, result.stderr, result.returncode) == ("from a row\n", "oops\n", 0)
    assert result.ok
    assert (result.timed_out, result.truncated, result.limit) == (False, False, "")


def test_an_exception_is_in_stderr_with_its_line(either):
    result = sandbox.python("x = 1\nraise ValueError('no')")
    assert result.returncode == 1
    assert "line 2" in result.stderr
    assert "raise ValueError('no')" in result.stderr


def test_text_beyond_ascii_goes_in_and_comes_out():
    assert sandbox.python("print('Îñ ' + input())", stdin="🦊").stdout == "Îñ 🦊\n"
    assert sandbox.python("import sys; sys.stdout.buffer.write(b'\\xff')").stdout == "\ufffd"


@pytest.mark.parametrize("code", ["", "print(", "\0", "'\ud800'", "import no_such_module"])
def test_what_is_no_program_is_a_result_too(code):
    assert sandbox.python(code).returncode == (0 if code == "" else 1)


def test_no_variable_of_the_environment_reaches_the_program(monkeypatch, either):
    monkeypatch.setenv("SOME_API_KEY", "secret-of-this-test")
    result = sandbox.python("import os, pathlib\nprint(dict(os.environ))\nprint(pathlib.Path.home())")
    assert result.ok
    assert "secret-of-this-test" not in result.stdout
    assert "SOME_API_KEY" not in result.stdout
    assert str(Path.home()) != result.stdout.splitlines()[1]


@needs_bwrap
def test_the_environment_of_other_processes_is_out_of_sight_with_bubblewrap():
    listing = "import os\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    result = sandbox.python(listing)
    assert str(os.getpid()) not in result.stdout[1:-2].split(", ")


def test_each_program_has_an_empty_folder_that_is_deleted(either):
    write = "import os\nprint(os.getcwd(), os.listdir())\nopen('made', 'w').write('x')\nprint(open('made').read())"
    first, second = (sandbox.python(write).stdout.splitlines() for _ in range(2))
    folder = Path(first[0].split(" ")[0])
    assert first[0].endswith("['main.py']")
    assert first[1] == "x"
    assert first[0] != second[0]
    assert not folder.exists()


def test_installed_packages_can_be_imported():
    result = sandbox.python("import numpy\nprint(numpy.arange(3).sum())", timeout=60, memory_mb=1024)
    assert result.stdout == "3\n"


def test_a_program_that_does_not_end_is_ended(either):
    result = ended_by_time("print('begun')\nwhile True: pass", lambda result: bool(result.stdout))
    assert (result.stdout, result.timed_out, result.limit, result.ok) == ("begun\n", True, "timeout", False)
    assert result.returncode == -9


def test_a_program_may_ignore_signals_and_close_its_streams_and_is_ended_all_the_same(either):
    deaf = "import os, signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
    stubborn = f"{deaf}os.closerange(0, 64)\nwhile True: pass"
    assert sandbox.python(stubborn, timeout=0.5).timed_out


def test_a_fork_bomb_ends(either, temporary):
    result = sandbox.python(FORK_BOMB, timeout=1)
    assert result.limit in {"timeout", "processes"}
    assert alive_in(temporary) == []


def test_what_a_program_leaves_behind_ends_with_it(either, temporary):
    result = sandbox.python(ESCAPE, timeout=5)
    assert result.returncode == 0
    assert "the end" in result.stdout
    assert alive_in(temporary) == []


def test_a_memory_bomb_is_a_memory_error(either):
    result = sandbox.python("x = bytearray(10**10)", memory_mb=128)
    assert result.returncode == 1
    assert "MemoryError" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_held_by_many_processes_counts_together(either, temporary):
    result = sandbox.python(MEMORY_OF_MANY, timeout=15)
    assert result.limit == "memory"
    assert alive_in(temporary) == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut_while_it_is_read(stream, either):
    endless = f"import sys\nwhile True: sys.{stream}.write('x' * 100_000)"
    result = ended_by_time(endless, lambda result: result.truncated)
    assert result.limit == "timeout"
    assert set(getattr(result, stream)) == {"x"}
    assert len(getattr(result, stream)) == sandbox.OUTPUT


def test_a_large_file_is_refused(either):
    result = sandbox.python("open('big', 'wb').write(b'x' * 10**8)")
    assert not result.ok


@needs_bwrap
def test_files_elsewhere_are_neither_seen_nor_changed_with_bubblewrap(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    result = sandbox.python(f"import pathlib\nprint(pathlib.Path({str(mine)!r}).exists())")
    assert (result.stdout, result.files_read_only) == ("False\n", True)
    for path in (mine, "/new", "/dev/new", Path(sys.prefix, "new"), Path(sandbox.__file__)):
        result = sandbox.python(f"open({str(path)!r}, 'w').write('theirs')")
        assert re.search("Read-only file system|No such file", result.stderr)
    assert mine.read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="mount(2)")
def test_a_program_can_make_nothing_writable_again(either):
    remount = "import ctypes\nprint(ctypes.CDLL(None).mount(b'none', b'/', None, 32 | 4096, b''))"
    assert sandbox.python(remount).stdout == "-1\n"


def test_there_is_no_network_with_bubblewrap(either):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = sandbox.python(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('in')")
    if result.network_isolated:
        assert result.stdout == ""
        assert re.search("Network is unreachable|Connection refused", result.stderr)
    else:
        assert result.stdout == "in\n"  # and `network_isolated` says so


def test_without_bubblewrap_the_result_says_so(no_bwrap):
    result = sandbox.python("print(1)")
    assert (result.stdout, result.files_read_only, result.network_isolated) == ("1\n", False, False)
    assert {line.partition(":")[0] for line in result.unprotected} >= {"kernel", "files", "processes", "network"}


@needs_bwrap
def test_with_bubblewrap_only_the_kernel_is_shared():
    result = sandbox.python("def f(): return 1", checks="assert f() == 1")
    assert [line.partition(":")[0] for line in result.unprotected] == ["kernel"]


def test_a_line_says_once_that_there_is_no_bubblewrap(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "_isolation", lambda _: sandbox._Isolation((), False, "it is not installed"))
    sandbox._say_once.cache_clear()
    for _ in range(2):
        sandbox.python("")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the sandbox has limits alone, without bubblewrap (it is not installed), so the code of a")
    assert line.partition(" -> ")[2]


def test_what_does_not_work_of_bubblewrap_is_told_and_the_next_way_is_taken(tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'no namespaces for you' >&2\nexit 1\n")
    broken.chmod(0o755)
    for each in (tmp_path, *tmp_path.parents[:-2]):
        each.chmod(0o755)
    isolation = sandbox._isolation(str(broken))
    assert (isolation.wrapper, isolation.problem) == ((), "no namespaces for you")


def test_many_threads_run_programs_at_once_and_each_gets_its_own_output():
    with ThreadPoolExecutor(32) as pool:
        results = pool.map(lambda i: sandbox.python(f"print({i})", timeout=60), range(32))
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(32)]


def test_what_a_program_wrote_just_before_it_ended_is_read(monkeypatch):
    class Slow(selectors.DefaultSelector):
        late = True

        def select(self, timeout=None):
            if self.late:  # sees nothing, and the program ends before it is asked whether it has
                self.late = False
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                return []
            return super().select(timeout)

    monkeypatch.setattr(sandbox.selectors, "DefaultSelector", Slow)
    assert sandbox.python("print(1)").stdout == "1\n"


def test_it_works_beside_threads_that_hold_files_open(tmp_path):
    """Descriptors of this process are not the program's."""
    secret = tmp_path / "secret"
    secret.write_text("secret-of-this-test")
    listing = "import os\nprint([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1]])"
    with secret.open() as kept:
        os.set_inheritable(kept.fileno(), True)
        result = sandbox.python(listing if sys.platform == "linux" else "print()")
    assert result.ok
    assert "secret" not in result.stdout


def test_an_interrupt_ends_the_program(monkeypatch, either, temporary):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sandbox.python("while True: pass", timeout=20)
    assert alive_in(temporary) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("sign", [9, 19])
def test_a_program_that_ends_or_stops_its_supervisor_is_ended_and_not_ok(sign, either, temporary):
    result = sandbox.python(f"import os\nos.kill(os.getppid(), {sign})\nwhile True: pass", timeout=2)
    assert not result.ok
    for _ in range(3_000):  # the kernel ends it with its supervisor, which may be a moment later
        if not alive_in(temporary):
            return
        threading.Event().wait(0.01)
    raise AssertionError(alive_in(temporary))


def test_a_supervisor_that_cannot_start_is_an_error_not_a_result(tmp_path, monkeypatch):
    broken = tmp_path / "child.py"
    broken.write_text("raise OSError('no more processes')")
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    with pytest.raises(RewardError, match="no more processes"):
        sandbox.python("print(1)", timeout=240)
    broken.write_text("import time\ntime.sleep(240)")
    with pytest.raises(RewardError, match="too busy to start it"):
        sandbox.python("print(1)", timeout=0.2)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"memory_mb": "256"}])
def test_limits_are_positive_numbers(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        sandbox.python("", **wrong)


def test_code_is_a_text():
    with pytest.raises(InputError, match="must be a string"):
        sandbox.python(None)


def test_it_leaves_no_thread_and_no_file_open():
    before = len([*Path("/dev/fd").iterdir()]), threading.active_count()
    for _ in range(3):
        sandbox.python("print(1)")
    assert (len([*Path("/dev/fd").iterdir()]), threading.active_count()) == before


CHECK = "assert double(2) == 4\nassert double(0) == 0\n"
RIGHT = "def double(x):\n    return 2 * x\n"
ENDED_EARLY = {
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "SystemExit": "raise SystemExit",
    "in the function": "import sys\ndef double(x):\n    sys.exit(0)",
    "the function itself": "import sys\ndef double(x):\n    return 4 if x else sys.exit()",
    "in a child": "import os\nif os.fork():\n    os._exit(0)\ndouble = str",
    "replaced": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''])",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\ndouble = str",
    "hook": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndouble = str",
    "written to all files": "import os\nfor i in range(3, 20):\n    try:\n        os.write(i, b'1' * 16)\n"
    "    except OSError:\n        pass\nos._exit(0)",
}


@pytest.mark.parametrize("code", ENDED_EARLY.values(), ids=ENDED_EARLY)
def test_a_program_that_ends_itself_before_its_checks_is_not_ok(code):
    result = sandbox.python(f"{code}\n{CHECK}", timeout=60)
    assert (result.ok, result.finished) == (False, False)
    assert result.limit == ""


ENDED_LATE = {
    "exit": "import sys\nsys.exit()",
    "quit": "quit(0)",
    "main": "import sys\ndef main():\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())",
    "unittest": "import unittest\nclass Double(unittest.TestCase):\n    def test(self):\n"
    "        self.assertEqual(double(1), 2)\nunittest.main()",
}


@pytest.mark.parametrize("end", ENDED_LATE)
def test_a_program_whose_last_line_exits_with_0_is_ok(end):
    result = sandbox.python(f"{RIGHT}{CHECK}{ENDED_LATE[end]}\n", timeout=60)
    assert (result.ok, result.returncode) == (True, 0), result.stderr


def test_failing_tests_of_unittest_are_not_ok_and_neither_is_an_exit_in_them():
    for body in ("return x", "raise SystemExit(0)"):
        result = sandbox.python(f"def double(x):\n    {body}\n{ENDED_LATE['unittest']}", timeout=60)
        assert not result.ok


def test_a_program_runs_as_a_script_does_and_its_traceback_has_its_own_lines_alone():
    code = """\
"A docstring."
from __future__ import annotations
import sys, pickle, inspect
class Own: ...
assert isinstance(pickle.loads(pickle.dumps(Own())), Own)
def known(x: Unknown): return [sorted(n for n in globals() if not n.startswith("__")), __name__, __doc__, sys.argv]
print(known(0), __file__.endswith("/main.py"), inspect.getsource(Own).strip())
def broken():
    raise ValueError("no")
broken()
"""
    result = sandbox.python(code, timeout=60)
    names = ["Own", "annotations", "inspect", "known", "pickle", "sys"]
    assert result.stdout == f"{[names, '__main__', 'A docstring.', ['main.py']]} True class Own: ...\n"
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.partition(", line ")[2] for line in lines if "File " in line] == ["10, in <module>", "9, in broken"]
    assert (lines[-1], result.returncode, result.finished) == ("ValueError: no", 1, False)
    assert "<string>" not in result.stderr
    wrong = sandbox.python("x = (1,\n", timeout=60)
    assert wrong.stderr.splitlines()[0].endswith('main.py", line 1')
    assert "SyntaxError" in wrong.stderr


def test_a_failed_check_counts_although_the_program_has_replaced_the_functions_that_exit(either):
    code = "import sys\nsys.exit = quit = exit = lambda *a: None\ndef f(x): return 0\nassert f(2) == 4"
    result = sandbox.python(code)
    assert (result.ok, result.finished) == (False, False)
    assert "AssertionError" in result.stderr


# Checks in a process of their own

PROGRAM = """
import math
from collections import Counter
limit = 3
def double(x): return 2 * x
def sort(values): values.sort()
def fails(): raise ValueError("no")
class Own(ValueError): ...
def _private(): return 1
def statistics(x): return x
queue = statistics
def thirds():
    from decimal import Decimal
    from fractions import Fraction
    return [Fraction(1, 3), Decimal("0.1")]
counted = Counter
def naturals():
    n = 0
    while True:
        yield n
        n += 1
def stacked(): return [Stack()]
def fails_own(): raise Own("mine")
class Stack:
    def __init__(self): self.held = []
    def push(self, x): self.held.append(x)
    def pop(self): return self.held.pop()
    def __len__(self): return len(self.held)
    def __iter__(self): return iter(self.held)
    def __getitem__(self, i): return self.held[i]
    def __repr__(self): return "a stack"
def same(x): return x
def pairs(): return {"a": (1, [2.5, None]), "b": {1, 2}, "c": b"x"}
"""


@pytest.mark.parametrize(
    "checks",
    [
        "assert double(2) == 4 and double('a') == 'aa'",
        "assert all(double(i) == 2 * i for i in range(5))",
        "assert limit == 3",
        "values = [3, 1]\nsort(values)\nassert values == [1, 3]",
        "assert pairs() == {'a': (1, [2.5, None]), 'b': {1, 2}, 'c': b'x'}",
        "try:\n    fails()\nexcept ValueError as error:\n    assert str(error) == 'no'\nelse:\n    assert False",
        "try:\n    fails_own()\nexcept Exception as error:\n    assert 'mine' in str(error)",
        "stack = Stack()\nstack.push(1)\nstack.push(2)\n"
        "assert len(stack) == 2 and list(stack) == [1, 2] and stack[0] == 1\n"
        "assert stack.pop() == 2 and stack.held == [1]\nassert same(stack).pop() == 1",
        "def check(f):\n    assert f(1) == 2\ncheck(double)\ncheck(program.double)",
        "import math\nassert math.isclose(double(0.1), 0.2)",
        "import math\nassert same(math.inf) == math.inf and math.isnan(same(math.nan))",
        "assert [*map(type, same([frozenset({1}), 2**20_000, -0.0, b'', bytearray(b'x'), 1j, ...]))] == "
        "[frozenset, int, float, bytes, bytearray, complex, type(...)]",
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "assert same([Fraction(1, 3), Decimal('0.10')]) == [Fraction(1, 3), Decimal('0.1')] == thirds()",
        "from collections import Counter\nassert counted('aab') == Counter('baa') == {'a': 2, 'b': 1}",
        "import itertools\nassert list(itertools.islice(naturals(), 3)) == [0, 1, 2]",
        "numbers = naturals()\nassert (next(numbers), next(numbers)) == (0, 1)",
        "try:\n    fails_own()\nexcept Own as error:\n    assert str(error) == 'mine'\nelse:\n    assert False",
        "try:\n    fails_own()\nexcept ValueError:\n    pass",
        "try:\n    same([])\n    Stack().pop()\nexcept IndexError:\n    pass",
        "assert _private() == 1 and statistics(1) == 1 and queue(2) == 2",
        "import statistics\nassert statistics.mean([double(1), double(2)]) == 3",
        "stack = Stack()\nassert same(stack) is stack and stack != None and 1 not in stack",
        "stacks = stacked()\nstacks[0].push(1)\nassert len(stacks[0]) == 1",
        "assert str(Stack()) == 'a stack' and dict(zip('ab', naturals())) == {'a': 0, 'b': 1}",
        "if __name__ == '__main__':\n    assert double(1) == 2",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(double(1), 2)\n"
        "unittest.main()",
        "def test_double():\n    assert double(1) == 2",
        "class TestDouble:\n    def test_double(self):\n        assert double(1) == 2",
        "'''\n>>> double(1)\n2\n'''\nimport doctest\ndoctest.testmod()",
    ],
)
def test_checks_call_the_program_and_compare_what_it_returns(checks):
    result = sandbox.python(PROGRAM, timeout=60, checks=checks)
    assert result.ok, result.stderr


def test_checks_call_the_program_with_bubblewrap_and_without(either):
    assert sandbox.python(PROGRAM, timeout=60, checks="assert double(2) == 4").ok


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ("assert double(2) == 5", "AssertionError"),
        ("assert triple(2) == 6", "NameError: name 'triple' is not defined"),
        ("assert math.isclose(double(0.1), 0.2)", "NameError: name 'math' is not defined"),
        ("assert Stack()", "neither true nor false"),
        ("double(lambda: 1)", "a function cannot be given to the program"),
        ("assert Stack() == 4", "an object of the program (Stack) cannot be compared with a int"),
        ("assert [Stack()] == [Stack()]", "let the program return a plain value"),
        ("if __name__ == '__main__':\n    assert double(1) == 3", "AssertionError"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(double(1), 3)\n"
            "unittest.main()",
            "AssertionError: 2 != 3",
        ),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(double(1), 3)\n"
            "unittest.main(exit=False)",
            "tests of T failed",
        ),
        (
            "import unittest\ndouble(1)\nclass T(unittest.TestCase):\n    def test(self): assert False",
            "tests of T failed",
        ),
        ("def test_double():\n    assert double(1) == 3", "AssertionError"),
        ("def test_double(tmp_path):\n    assert double(1) == 2", "missing 1 required positional argument: 'tmp_path'"),
        ("async def test_double():\n    assert double(1) == 3", "test_double() did not run to its end"),
        ("class TestDouble:\n    def test(self):\n        assert double(1) == 3", "AssertionError"),
        ("'''\n>>> double(1)\n3\n'''\nimport doctest\ndoctest.testmod()", "1 examples of doctest failed"),
        ("", "the checks called nothing of the program"),
        ("import unittest\nunittest.main()", "the checks called nothing of the program"),
        ("def check():\n    assert double(1) == 3", "the checks called nothing of the program"),
        ("fails()", "ValueError: no"),
        ("assert double(", "SyntaxError"),
        ("import time\nwhile True: double(1)", "ended before its checks did"),
    ],
)
def test_checks_that_fail_say_why(checks, says):
    result = sandbox.python(PROGRAM, timeout=2 if "while" in checks else 60, checks=checks)
    assert (result.ok, result.checked) == (False, False)
    assert says in result.stderr


def test_values_of_numpy_are_plain_ones():
    program = "import numpy as np\ndef mean(x): return np.mean(x)\ndef twice(x): return 2 * np.array(x)"
    checks = "assert mean([1, 2]) == 1.5 and twice([1, 2]) == [2, 4]"
    assert sandbox.python(program, timeout=60, memory_mb=1024, checks=checks).ok


def test_a_program_that_fails_has_no_checks_and_its_output_is_kept():
    result = sandbox.python("print('begun')\n1 / 0", timeout=60, checks="assert True")
    assert (result.ok, result.returncode, result.stdout) == (False, 1, "begun\n")
    assert "ZeroDivisionError" in result.stderr


def test_checks_are_a_text():
    with pytest.raises(InputError, match="checks must be a string, not list"):
        sandbox.python("", checks=["assert True"])


def test_checks_leave_no_file_open_and_no_process():
    before = len([*Path("/dev/fd").iterdir()])
    for _ in range(3):
        sandbox.python("x = 1", checks="assert x == 1")
    assert len([*Path("/dev/fd").iterdir()]) == before
