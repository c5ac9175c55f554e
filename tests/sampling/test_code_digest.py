"""Rewards are compared part by part: what sets them differs, and what does not is the same, also in another kernel."""

import importlib
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from rolloutlab.sampling.code_digest import changed_parts, describe_parts, is_part


def parts(cell, name="f"):
    names = {"__name__": "notebook"}
    exec(textwrap.dedent(cell), names)
    return describe_parts(names[name], "f")


def differs(one, other):
    return bool(changed_parts(parts(one), parts(other)))


CLASSES = """
class Setter:
    def __init__(self, limit): self.limit = limit
    @property
    def limit(self): return self._limit
    @limit.setter
    def limit(self, value): self._limit = value
    def __call__(self, answer): return self._limit

class Rules:
    def __init__(self): self.words = []
    def add(self, word): self.words.append(word); return self
    def __call__(self, answer): return sum(word in answer for word in self.words)

class SetUp:
    def __init__(self, limit): self.set_up(limit)
    def set_up(self, limit): self.limit = limit
    def __call__(self, answer): return self.limit
"""

SETTINGS = {
    "beside a store of its line": (
        "W = {'a': VALUE}\ndef f(x):\n out = {}\n out['a'] = W['a'] * 2\n return out",
        "1",
        "2",
    ),
    "copied in a loop": ("W = {'a': VALUE}\ndef f(x):\n out = {}\n for k in W: out[k] = W[k]\n return out", "1", "2"),
    "beside a memo": ("M, W = {}, {'a': VALUE}\ndef f(x):\n M[x] = W['a']\n return M[x]", "1", "2"),
    "named as an attribute": ("t = VALUE\nclass P: pass\ndef f(x):\n p = P(); p.t = t\n return p.t", "1", "2"),
    "of a property": (CLASSES + "f = Setter(VALUE)", "1", "2"),
    "of a method": (CLASSES + "f = Rules().add(VALUE)", "'please'", "'sorry'"),
    "of a method that __init__ calls": (CLASSES + "f = SetUp(VALUE)", "1", "2"),
    "set from outside": (CLASSES + "f = SetUp(1)\nf.limit = VALUE", "1", "2"),
    "a slot": (
        "class A:\n __slots__ = ('__t',)\n def __init__(s, t): s.__t = t\n def __call__(s, x): ...\nf = A(VALUE)",
        "1",
        "2",
    ),
    "a default": ("def f(x, limit=VALUE): return limit", "1", "2"),
    "a metaclass": (
        "class M(type):\n T = VALUE\nclass A(metaclass=M):\n def __call__(s, x): return type(s).T\nf = A()",
        "1",
        "2",
    ),
    "a partial method": (
        "import functools\nclass A:\n def g(s, x, t): ...\n __call__ = functools.partialmethod(g, t=VALUE)\nf = A()",
        "1",
        "2",
    ),
    "a bound method of a dictionary": ("f = {'a': VALUE}.get", "1", "2"),
    "a list's own class": ("class L(list): pass\nw = L([VALUE])\ndef f(x): return w", "1", "2"),
    "a factory": ("import collections\nD = collections.defaultdict(VALUE)\ndef f(x): return D[x]", "int", "float"),
    "single dispatch": (
        "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return VALUE",
        "1",
        "2",
    ),
    "wrapped by a package": ("import contextlib\n@contextlib.contextmanager\ndef f(x): yield VALUE", "1", "2"),
    "a path": ("from pathlib import Path\nP = Path(VALUE)\ndef f(x): return P", "'a'", "'b'"),
    "a path in an object": (
        "from pathlib import Path\nfrom types import SimpleNamespace as N\nP = N(p=Path(VALUE))\ndef f(x): return P",
        "'a'",
        "'b'",
    ),
    "a fraction": ("from fractions import Fraction\nP = Fraction(VALUE)\ndef f(x): return P", "1", "2"),
    "an item getter": ("import operator\nf = operator.itemgetter(VALUE)", "1", "2"),
    "a date": ("import datetime\nP = datetime.timedelta(VALUE)\ndef f(x): return P", "1", "2"),
    "a long pattern": ("import re\nR = re.compile('a' * 300 + VALUE)\ndef f(x): return R", "'b'", "'c'"),
    "flags of a pattern": ("import re\nR = re.compile('a', VALUE)\ndef f(x): return R", "0", "re.I"),
    "a long array": ("import numpy as np\nW = np.zeros(5000); W[2500] = VALUE\ndef f(x): return W", "1", "2"),
    "a precise array": (
        "import numpy as np\nW = np.array([VALUE])\ndef f(x): return W",
        "0.1234567891",
        "0.1234567892",
    ),
    "the type of an array": ("import numpy as np\nW = np.zeros(2, VALUE)\ndef f(x): return W", "'i8'", "'f8'"),
    "the shape of an array": ("import numpy as np\nW = np.zeros(VALUE)\ndef f(x): return W", "(2, 3)", "(3, 2)"),
    "the mask of an array": (
        "import numpy as np\nW = np.ma.array([1, 2], mask=[0, VALUE])\ndef f(x): return W",
        "0",
        "1",
    ),
    "an array of objects": (
        "import numpy as np\nW = np.array([[VALUE], 'a'], dtype=object)\ndef f(x): return W",
        "1",
        "2",
    ),
    "an array in a list": ("import numpy as np\nW = [np.zeros(2000, VALUE)]\ndef f(x): return W", "'i8'", "'f8'"),
    "a frame": (
        "import pandas as pd\nD = pd.DataFrame({'a': range(200)}); D.loc[100, 'a'] = VALUE\ndef f(x): return D",
        "7",
        "8",
    ),
    "a column's name": ("import pandas as pd\nD = pd.DataFrame({VALUE: [1]})\ndef f(x): return D", "'a'", "'b'"),
    "a frame of lists": ("import pandas as pd\nD = pd.DataFrame({'a': [[VALUE]]})\ndef f(x): return D", "1", "2"),
    "a tensor": ("import torch\nW = torch.zeros(5000); W[2500] = VALUE\ndef f(x): return W", "1", "2"),
    "a bfloat16 scalar": (
        "import torch\nW = torch.tensor(VALUE, dtype=torch.bfloat16)\ndef f(x): return W",
        "1.",
        "2.",
    ),
    "a value of an enum": ("import enum\nclass E(enum.Enum):\n A = VALUE\ndef f(x): return E.A.value", "1", "2"),
    "which member of an enum": (
        "import enum\nclass E(enum.Enum):\n A = 1\n B = 2\nW = E.VALUE\ndef f(x): return W",
        "A",
        "B",
    ),
    "code after much data": (
        "DATA = [{'q': str(i)} for i in range(6000)]\ndef norm(x): return VALUE\ndef f(x): return norm(x) in DATA",
        "1",
        "2",
    ),
    "code after many objects": (
        "class A:\n def __init__(s, n): s.n = [n, s]\nDATA = [A(i) for i in range(24_000)]\n"
        "H = {'a': lambda x: VALUE}\ndef f(x): return DATA and H['a'](x)",
        "1",
        "2",
    ),
    "an entry of much data": ("D = {i: i for i in range(9000)}\nD[8500] = VALUE\ndef f(x): return D[x]", "1", "2"),
    "an alias": ("A, B = [1], [2]\nD = {'a': A, 'b': B, 'c': VALUE}\ndef f(x): return D", "A", "B"),
    "a set of objects": ("class A:\n def __init__(s, n): s.n = n\nS = {A(1), A(VALUE)}\ndef f(x): return S", "2", "3"),
}


@pytest.mark.parametrize(("cell", "one", "other"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_is_a_part(cell, one, other):
    assert differs(cell.replace("VALUE", one), cell.replace("VALUE", other))
    assert not differs(cell.replace("VALUE", one), cell.replace("VALUE", one))


def module(folder, monkeypatch, texts, cell):
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"near", "far", "pack"}]:
        monkeypatch.delitem(sys.modules, name)
    return parts(cell)


NEAR = {"near.py": "import far\nT = 1\ndef g(x): return far.h(x)\ndef t(x): return T\ndef unused(): return 1\n"}
FAR = "def h(x): return 1\n"


@pytest.mark.parametrize(
    "cell",
    [
        "import near\ndef f(x): return near.g(x)",
        "import near as other\ndef f(x): return other.g(x)",
        "from near import g as f",
        "import near\ndef f(x): return getattr(near, 'g')(x)",
        "def f(x):\n    import near\n    return near.g(x)",
        "def f(x):\n    from near import g\n    return g(x)",
        "def f(x):\n    import pack.inner\n    return pack.inner.h(x)",
        "def f(x):\n    from pack import inner\n    return inner.h(x)",
        "import pack.inner\ndef f(x): return pack.inner.h(x)",
        "from pack import inner\nclass A:\n    def __call__(self, x): return inner.h(x)\nf = A()",
    ],
)
def test_a_module_that_a_module_uses_is_a_part(tmp_path, monkeypatch, cell):
    texts = {**NEAR, "pack/__init__.py": "", "pack/inner.py": "from far import h\n"}
    one = module(tmp_path, monkeypatch, {**texts, "far.py": FAR}, cell)
    assert not changed_parts(one, module(tmp_path, monkeypatch, {}, cell))
    assert changed_parts(one, module(tmp_path, monkeypatch, {"far.py": FAR.replace("1", "2")}, cell))


@pytest.mark.parametrize(
    "cell",
    [
        "import near\nnear.T = VALUE\ndef f(x): return near.T",
        "import near\nnear.T = VALUE\nf = near.t",
        "import near\nnear.T = VALUE\ndef f(x):\n    from near import T\n    return T",
    ],
)
def test_a_value_that_a_notebook_sets_in_a_module_is_a_part(tmp_path, monkeypatch, cell):
    texts = {**NEAR, "far.py": FAR}
    one, other = (module(tmp_path, monkeypatch, texts, cell.replace("VALUE", value)) for value in "34")
    assert changed_parts(one, other)


def test_a_function_that_is_not_used_is_no_part_and_neither_is_a_module_that_comes_to_be_imported(
    tmp_path, monkeypatch
):
    cell = "import near\ndef f(x): return near.g(x)"
    one = module(tmp_path, monkeypatch, {**NEAR, "far.py": FAR}, cell)
    edited = {"near.py": NEAR["near.py"].replace("unused(): return 1", "unused(): return 2")}
    assert not changed_parts(one, module(tmp_path, monkeypatch, edited, cell))
    within = "def f(x):\n    import near\n    return near.g(x)"
    before = module(tmp_path, monkeypatch, {}, within)
    assert "near" not in sys.modules
    importlib.import_module("near")
    assert not changed_parts(before, parts(within))


KERNELS = """
import collections, enum, functools, json, logging, threading
from dataclasses import dataclass, field
from pydantic import BaseModel
from rolloutlab.sampling.code_digest import describe_parts
class E(enum.Enum):
    A, B, C = 1, 2, 3
@dataclass(frozen=True)
class R:
    n: str
    w: float = 1.0
    l: tuple = field(default_factory=tuple)
class O:
    def __init__(self, n): self.n = n
class P(BaseModel):
    t: int = 1
def helper(x): return x
def a(x): return helper(x)
def b(x): return helper(x) + 1
def c(x): return helper(x) + 2
S = {E.A, E.B, E.C}, {R("a"), R("b", 2.0), R("c")}, {O(1), O(2), O(3)}, {a, b, c}, {"a", "b", "c"}, {O, R, E}
KEYS = {word: len(word) for word in {"one", "two", "three", "four"}}
KINDS = {each: 1 for each in {E.A, E.B, E.C}}
LOG, LOCK, MODEL = logging.getLogger("x"), threading.Lock(), P()
LOG.isEnabledFor(COUNT)
class Kept:
    def __init__(self): self.parent, self.children = None, [O(1)]
ROOT = Kept()
ROOT.children.append(ROOT)
@functools.cache
def f(x): return S, KEYS, KINDS, LOG, LOCK, MODEL, ROOT, x in {"p", "q", "r"}
"""


def test_parts_are_the_same_in_another_kernel():
    def kernel(seed):
        code = KERNELS.replace("COUNT", seed) + "print(json.dumps(describe_parts(f, 'f')))"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", f"import sys\nkept = [[] for _ in range({seed}000)]\n{code}"]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    first = kernel("1")
    assert first == kernel("5") == kernel("8")
    assert not any("unreadable" in path for path in first)


def test_a_part_is_named_with_what_it_is_part_of():
    W = {"scale": 1.0, "calls": 0}
    before = describe_parts(lambda: W, "f")
    W["calls"] += 1
    assert changed_parts(before, describe_parts(lambda: W, "f")) == {"f|(W)['calls']"}
    W["more"] = 1
    (changed,) = changed_parts(before, describe_parts(lambda: W, "f"))
    assert changed == "f|(W)"
    assert is_part("f|(W)['scale']", {changed})
    assert not is_part("f|(W)", {"f|(W)['calls']"})
    assert not is_part("f|.ab", {"f|.a"})


def test_parts_of_many_objects_are_few():
    class Node:
        def __init__(self, n):
            self.values, self.array = {f"k{i}": [n] for i in range(40)}, np.zeros(3)

    nodes = [Node(i) for i in range(40)]
    assert len(describe_parts(lambda: nodes, "f")) < 400
