"""What is an answer, and whose."""

import pytest

from rolloutlab.auth.redirect.response import is_for, parameters

ADDRESS = "http://127.0.0.1:4711/x/callback?code=a%2Fb+c&state=s-1&iss=https%3A%2F%2Fid.example"
FOUND = {"code": "a/b c", "state": "s-1", "iss": "https://id.example"}


@pytest.mark.parametrize(
    "text",
    [
        ADDRESS,
        f"  {ADDRESS}\n",
        f"<{ADDRESS}>",
        f'"{ADDRESS}"',
        ADDRESS[:60] + "\n   " + ADDRESS[60:],
        f"{ADDRESS}#_=_",
        ADDRESS.partition("?")[2],
        "?" + ADDRESS.partition("?")[2],
    ],
)
def test_the_parameters_are_found_in_an_address_and_in_its_query_alone(text):
    assert parameters(text) == FOUND


def test_an_address_without_a_query_has_no_parameters():
    assert parameters("http://127.0.0.1:4711/x/callback") == {}


def test_an_answer_with_a_parameter_twice_is_none():
    assert parameters("code=a&code=b&state=s") == {}


@pytest.mark.parametrize("text", ["", "code=%ff&state=s", "&".join(f"p{i}=1" for i in range(100))])
def test_what_is_no_answer_has_no_parameters(text):
    assert parameters(text) == {}


def test_an_answer_is_for_the_login_whose_state_it_carries():
    assert is_for("s", {"state": "s"})


@pytest.mark.parametrize("other", ["S", "s ", "", "é", "\ud800", "ss"])
def test_an_answer_with_another_state_is_for_somebody_else(other):
    assert not is_for("s", {"state": other})


def test_an_answer_without_a_state_is_for_nobody():
    assert not is_for("s", {"code": "a"})
