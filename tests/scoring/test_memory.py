"""A fingerprint is equal for functions that give the same results, and differs where they may not."""

import functools
import math
import re
from typing import Any

import pytest

from rolloutlab.scoring.calls import reward_call
from rolloutlab.scoring.memory import fingerprint, source_of


def fingerprint_of(source: str, **variables: Any) -> str:
    """Of the function `f` that a cell of a notebook defines beside these variables."""
    namespace: dict[str, Any] = {"__name__": "__main__", **variables}
    exec(source, namespace)
    return fingerprint(reward_call("", namespace["f"], ["capital"]))


BASE = "def f(answer, capital):\n    return float(answer == capital)"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BASE, "# a comment\n\ndef f(answer, capital):\n\n    return float(answer == capital)"),
        ("f = lambda answer: len(answer)", "f  =  lambda answer : len( answer )"),
        ("k = 2\ndef f(answer): return k", "k = 1\nk = 2\ndef f(answer): return k"),
        ("import math\ndef f(answer): return math.sqrt(2)", "import math\n\ndef f(answer): return math.sqrt(2)"),
        ("def g(x): return x\ndef f(answer): return g(1)", "z = 3\ndef g(x): return x\ndef f(answer): return g(1)"),
    ],
)
def test_what_gives_the_same_has_the_same(one, other):
    assert fingerprint_of(one) == fingerprint_of(other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BASE, "def f(answer, capital):\n    return float(answer != capital)"),
        (BASE, "def f(answer, capital):\n    return float(answer == capital) + 0"),
        ("f = lambda answer: 1.0", "f = lambda answer: 2.0"),
        ("f = lambda answer: 1.0", "f = lambda answer: 1"),
        ("f = lambda answer: True", "f = lambda answer: 1"),
        ("f = lambda answer: 0.0", "f = lambda answer: -0.0"),
        ("f = lambda answer: answer.lower()", "f = lambda answer: answer.upper()"),
        ("k = 1\ndef f(answer): return k", "k = 2\ndef f(answer): return k"),
        ("k = (1, 'a')\ndef f(answer): return k", "k = (1, 'b')\ndef f(answer): return k"),
        ("k = {'a': [1]}\ndef f(answer): return k", "k = {'a': [2]}\ndef f(answer): return k"),
        ("def f(answer, by=1): return by", "def f(answer, by=2): return by"),
        ("def f(answer, *, by=1): return by", "def f(answer, *, by=2): return by"),
        ("def g(x): return x\ndef f(answer): return g(1)", "def g(x): return -x\ndef f(answer): return g(1)"),
        ("def f(answer):\n def g(): return 1\n return g()", "def f(answer):\n def g(): return 2\n return g()"),
        ("def m(k): return lambda answer: k\nf = m(1)", "def m(k): return lambda answer: k\nf = m(2)"),
        (
            "from math import sin as g\ndef f(answer): return g(1)",
            "from math import cos as g\ndef f(answer): return g(1)",
        ),
        (
            "import re\np = re.compile('a')\ndef f(answer): return p.match(answer)",
            "import re\np = re.compile('b')\ndef f(answer): return p.match(answer)",
        ),
        ("def f(answer, capital): return 1", "def f(capital, answer): return 1"),
        ("def f(answer): return f.by\nf.by = 1", "def f(answer): return f.by\nf.by = 2"),
        (
            "def g(): return g.by\ng.by = 1\ndef f(answer): return g()",
            "def g(): return g.by\ng.by = 2\ndef f(answer): return g()",
        ),
        ("def f(answer):\n import math\n return 1", "def f(answer):\n import re\n return 1"),
    ],
)
def test_what_may_give_another_result_has_another(one, other):
    assert "" not in (fingerprint_of(one), fingerprint_of(other))
    assert fingerprint_of(one) != fingerprint_of(other)


@pytest.mark.parametrize(
    "source",
    [
        "class C: pass\nc = C()\ndef f(answer): return c",
        "class C: pass\ndef f(answer): return C",
        "def f(answer): return eval('answer')",
        "def f(answer): return globals()['k']",
        "f = lambda trajectory: 1.0",
        "f = lambda t, a, m, r: 1.0",
        "f = lambda answers: [1.0]",
        "import tests.labs\ndef f(answer): return tests.labs.x",
        "def f(answer):\n import tests.labs\n return tests.labs.x",
        "def f(answer):\n from tests.labs import x\n return x",
        "def f(answer):\n from . import math\n return math.x",
        "def f(answer):\n def g():\n  import tests.labs\n return g()",
        "def f(answer): return f.of\nclass C: pass\nf.of = C()",
        "import random\ndef f(answer): return random.random()",
        "from random import random\ndef f(answer): return random()",
        "import time\ndef f(answer): return time.time()",
        "from time import monotonic\ndef f(answer): return monotonic()",
        "from datetime import datetime\ndef f(answer): return datetime.now().hour",
        "def f(answer):\n import secrets\n return secrets.randbelow(2)",
        "import os\ndef f(answer): return os.environ['X']",
        "from os import environ\ndef f(answer): return environ['X']",
        "def f(answer):\n from os import getenv\n return getenv('X')",
        "import pathlib\ndef f(answer): return pathlib.Path('x').stat().st_size",
        "import httpx\ndef f(answer): return httpx.get('http://x')",
        "def f(answer): return len(open('x').read())",
        "def f(answer): return hash(answer)",
        "read = open\ndef f(answer): return len(read('x').read())",
        "run = eval\ndef f(answer): return run('answer')",
        "import builtins\ndef f(answer): return builtins.eval('answer')",
        "n = 0\ndef f(answer):\n global n\n n += 1\n return n",
        "class Text(str): pass\nt = Text('a')\ndef f(answer): return t.by",
        "from collections import defaultdict\nd = defaultdict(lambda: 1)\ndef f(answer): return d[answer]",
        "file = open('/dev/null')\nfile.close()\ndef f(answer): return file.read()",
    ],
)
def test_what_cannot_be_compared_is_never_remembered(source):
    assert fingerprint_of(source) == ""


@pytest.mark.parametrize(
    "source",
    [
        "import json, math\ndef f(answer): return math.sqrt(len(json.loads(answer)))",
        "def f(answer):\n import re\n from collections import Counter\n return len(Counter(re.findall('a', answer)))",
        "def f(answer, row): return float(any(x in answer for x in row['names'].id))",
        "from urllib.parse import urlparse\ndef f(answer): return len(urlparse(answer).path)",
        "def f(answer):\n try: return float(answer)\n except ValueError: return 0.0",
        "def f(answer): return max([1, 2], key=lambda n: n + len(answer))",
        "def f(answer): return len(answer[1:3])",
    ],
)
def test_functions_of_pure_modules_and_built_in_ones_are_remembered(source):
    assert fingerprint_of(source) == fingerprint_of(source) != ""


def test_functions_that_call_each_other_have_one():
    source = "def g(n): return n and h(n - 1)\ndef h(n): return n and g(n - 1)\ndef f(answer): return g(3)"
    assert fingerprint_of(source) == fingerprint_of(source) != ""


def test_sets_are_compared_whatever_their_order():
    names = [f"name {i}" for i in range(50)]
    source = "def f(answer): return answer in names"
    assert fingerprint_of(source, names={*names}) == fingerprint_of(source, names={*reversed(names)}) != ""


def test_partials_methods_and_installed_functions_have_one():
    def scaled(answer, by):
        return by * len(answer)

    def of(function):
        return fingerprint(reward_call("", function, []))

    assert of(functools.partial(scaled, by=2)) == of(functools.partial(scaled, by=2)) != ""
    assert of(functools.partial(scaled, by=2)) != of(functools.partial(scaled, by=3))
    pattern = re.compile("a")
    assert of(lambda answer: float(bool(pattern.match(answer))) + math.pi) != ""


def test_a_function_of_another_name_is_another_component():
    def f(answer):
        return 1.0

    assert fingerprint(reward_call("a", f, [])) != fingerprint(reward_call("b", f, []))


def test_the_source_of_a_function_is_the_same_wherever_it_is_written():
    def right(answer):
        return len(answer)

    assert source_of(right) == "def right(answer):\n    return len(answer)\n"
