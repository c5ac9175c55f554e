"""`WWW-Authenticate` as servers really write it."""

import pytest

from rolloutlab.auth.challenges import Challenge, bearer, challenges


@pytest.mark.clause("F4")
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Bearer realm="x"', [Challenge("bearer", {"realm": "x"})]),
        ("Bearer", [Challenge("bearer")]),
        (
            'bearer Scope="a b", ERROR=insufficient_scope',
            [Challenge("bearer", {"scope": "a b", "error": "insufficient_scope"})],
        ),
        (
            'Basic realm="a, b", Bearer scope="x"',
            [Challenge("basic", {"realm": "a, b"}), Challenge("bearer", {"scope": "x"})],
        ),
        ('Negotiate dG9rZW4=, Bearer scope="x"', [Challenge("negotiate"), Challenge("bearer", {"scope": "x"})]),
        (
            r'Bearer error_description="say \"yes\", please"',
            [Challenge("bearer", {"error_description": 'say "yes", please'})],
        ),
        (
            'Bearer scope = x , resource_metadata="https://a/b"',
            [Challenge("bearer", {"scope": "x", "resource_metadata": "https://a/b"})],
        ),
        ("Negotiate, Basic realm=x", [Challenge("negotiate"), Challenge("basic", {"realm": "x"})]),
        ('Bearer scope="a", scope="b"', [Challenge("bearer", {"scope": "a"})]),
        ("", []),
        ("=,,=", []),
        ('Bearer scope="never closed', [Challenge("bearer", {})]),
    ],
)
def test_a_header_is_read_scheme_by_scheme(header, expected):
    assert list(challenges(header))[: len(expected) or None] == expected


@pytest.mark.clause("G1")
def test_the_challenge_that_says_where_to_go_on_wins_among_several_headers():
    found = bearer(
        ['Basic realm="x"', 'Bearer realm="y"', 'Bearer resource_metadata="https://a/b", scope="read write"']
    )
    assert found.resource_metadata == "https://a/b"
    assert found.scopes == ("read", "write")


def test_without_a_bearer_challenge_there_is_none():
    assert bearer(["Basic realm=x"]) is None
