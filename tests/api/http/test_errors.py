"""Why a service refused, in words; how they reach a user is in test_http.py."""

import json

import pytest

from rolloutlab.api.http.errors import status_error
from rolloutlab.errors import RefusedError, RolloutlabError, SignInError

SERVICE = "http://train.example"


def refused(status: int, body: bytes = b"", token: str | None = None) -> RolloutlabError:
    return status_error(SERVICE, status, "Unprocessable Entity", body, [token] if token else ())


def test_a_refused_token_comes_with_what_to_do_about_it():
    error = refused(401, token="sekret")
    assert isinstance(error, SignInError)
    assert error.message.startswith("http://train.example refused the token: 401")
    assert error.hint == f"%connect {SERVICE} --key-env ROLLOUTLAB_API_KEY"


def test_a_service_that_wants_a_token_and_got_none_says_so():
    assert refused(401).message.startswith("http://train.example wants a token: 401")


def test_a_token_that_the_service_repeats_is_not_shown():
    body = json.dumps({"error": {"message": "Incorrect API key provided: sekret."}}).encode()
    assert refused(422, body, "sekret").message == f"{SERVICE} answered 422 Incorrect API key provided: ...."


def test_a_redirect_is_told_with_where_it_leads_without_what_may_be_secret():
    error = status_error(SERVICE, 307, "Temporary Redirect", b"", ["sekret"], "https://new.example/sekret/v1?key=1")
    assert error.message == f"{SERVICE} answered 307 Temporary Redirect: it leads to https://new.example/.../v1"
    assert error.hint == "%connect that address"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "the model is busy", "type": "x", "param": None, "code": None}}, "the model is busy"),
        ({"error": "the model is busy"}, "the model is busy"),
        ({"detail": "the model is busy"}, "the model is busy"),
        ({"error": "InvalidArgumentError", "message": "the model is busy"}, "the model is busy"),
        ({"detail": None, "error": {"message": "the model is busy"}}, "the model is busy"),
        (
            {"detail": [{"loc": ["body", "trajectory_groups", 0, "reward"], "msg": "is missing", "type": "missing"}]},
            "body.trajectory_groups.0.reward: is missing",
        ),
        ({"detail": [{"loc": ["a"], "msg": "one"}, {"loc": ["b"], "msg": "two"}]}, "a: one; b: two"),
    ],
)
def test_what_the_service_said_is_in_the_message(body, said):
    assert refused(422, json.dumps(body).encode()).message == f"{SERVICE} answered 422 {said}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[1]",
        b'"text"',
        b"null",
        b"{}",
        b'{"detail": null}',
        b'{"detail": ["bad"]}',
        b'{"detail": [{}]}',
        b'{"detail": [{"loc": null, "msg": null}]}',
        b'{"error": {}}',
        b'{"error": {"message": null}}',
        b"\xff\xfe",
    ],
)
def test_an_error_with_any_other_body_is_still_an_error_of_ours_without_the_word_none(body):
    error = refused(422, body)
    assert isinstance(error, RefusedError)
    assert error.message.startswith(f"{SERVICE} answered 422 ")
    assert "None" not in error.message
