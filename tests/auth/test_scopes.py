"""Which scopes are asked for, as the specification chooses them."""

import pytest

from rolloutlab.auth.challenges import first_scopes, step_up_scopes


@pytest.mark.clause("L1")
def test_the_scope_of_the_first_challenge_is_used_when_given():
    assert first_scopes(("read",), ("read", "write"), ()) == ("read",)


@pytest.mark.clause("L2")
def test_otherwise_all_scopes_that_the_resource_supports_are_used():
    assert first_scopes((), ("read", "write"), ("other",)) == ("read", "write")


@pytest.mark.clause("B3", "L2")
def test_no_scope_is_sent_where_the_resource_says_none_and_the_authorization_servers_own_are_not_taken():
    assert first_scopes((), None, ("everything", "offline_access")) == ()


@pytest.mark.clause("L3")
def test_no_relation_between_challenged_and_supported_scopes_is_assumed():
    assert first_scopes(("unheard-of",), ("read",), ()) == ("unheard-of",)


def test_access_that_lasts_is_asked_for_where_it_is_offered_beside_another_scope():
    assert first_scopes(("read",), None, ("read", "offline_access")) == ("read", "offline_access")
    assert first_scopes((), None, ("offline_access",)) == ()


@pytest.mark.clause("M1")
def test_a_step_up_asks_for_what_was_challenged_beside_what_was_granted():
    assert step_up_scopes(("read",), ("write", "read"), ()) == ("read", "write")
