"""Proofs as RFC 7636 has them."""

import re

import pytest

from rolloutlab.auth.pkce import challenge_of, new_verifier


@pytest.mark.clause("J3")
def test_the_challenge_is_that_of_the_standards_example():
    assert challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_verifier_has_43_to_128_unreserved_characters_and_never_comes_twice():
    made = {new_verifier() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", each) for each in made)
