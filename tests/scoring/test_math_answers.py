"""Mathematical answers, compared as expressions by math-verify."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

import rolloutlab
from rolloutlab.errors import InputError, RewardError

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        (r"So it is \boxed{\frac12}.", "0.5", 1.0),
        (r"It is \boxed{5}, not 6.", 5, 1.0),
        (r"First \boxed{7}. Checking again, the result is \boxed{8}.", 8, 1.0),
        (r"First \boxed{7}. Checking again, the result is \boxed{8}.", 7, 0.0),
        (r"$x = \boxed{7}$ was wrong: $x = \boxed{\frac{1}{2}}$.", "0.5", 1.0),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", 1.0),
        (r"\boxed{\sqrt{2}}", "2^{1/2}", 1.0),
        ("1/3", r"$\frac{1}{3}$", 1.0),
        ("The answer is 42.", "so... #### 42", 1.0),
        ("The answer is 41.", "42", 0.0),
        ("Paris", "42", 0.0),
        ("", "42", 0.0),
        (None, "42", 0.0),
        ("It is \u22123.", "-3", 1.0),
        (r"\boxed{-3}", "\u22123", 1.0),
        (r"\boxed{(1,2)}", "(1, 2)", 1.0),
        (r"\boxed{(5,2)}", "(1, 2)", 0.0),
        (r"\boxed{2}", "(1, 2)", 0.0),
        ("(1,2)", "(1, 2)", 1.0),
        ("(2,1)", "(1, 2)", 0.0),
        ("[1, 2]", "[1, 2)", 0.0),
        (r"\boxed{1 + x}", "x+1", 1.0),
        ("x+2", "x+1", 0.0),
        ("3", "x = 3", 1.0),
        ("10", "5 + 5 = 10", 1.0),
        ("1,000", np.float32(1000), 1.0),
        ("1/2", Fraction(1, 2), 1.0),
        ("42 " * 20_000, "42", 0.0),
    ],
)
def test_an_answer_is_right_when_it_is_the_same_expression(answer, gold, reward):
    assert rolloutlab.math_answer(answer, gold) == reward


def test_a_right_answer_that_is_no_mathematics_is_an_error():
    with pytest.raises(RewardError, match="'Paris is nice' is not mathematics"):
        rolloutlab.math_answer("42", "Paris is nice")


def test_threads_compare_too():
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rolloutlab.math_answer, ["1/2"] * 8, ["0.5"] * 8)) == [1.0] * 8


def test_it_scores_a_collection_with_a_cell_of_one_line(lab, collect, rewards):
    collect(1, 2, solution="0.5")
    lab.reward("capitals", lambda solution: rolloutlab.math_answer(r"\boxed{\frac{1}{2}}", solution))
    assert rewards() == [1.0, 1.0]


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with pytest.raises(InputError) as raised:
        rolloutlab.math_answer("1", "1")
    assert raised.value.hint == "%pip install rolloutlab[math]"
