"""The page on which a sign-in ends."""

import re

import pytest

from rolloutlab.auth.redirect import page

PAGES = [shown for shown in vars(page).values() if isinstance(shown, page.Page)]


@pytest.mark.parametrize("shown", PAGES, ids=lambda shown: shown.title)
def test_a_page_runs_nothing_but_its_own_is_kept_by_nobody_and_says_nothing_of_where_it_came_from(shown):
    headers, body = shown.render()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert set(re.findall(r'nonce="([^"]+)"', body.decode())) == set(re.findall(r"'nonce-([^']+)'", policy))


def test_a_nonce_is_used_once():
    assert page.RECEIVED.render()[1] != page.RECEIVED.render()[1]


def test_the_page_says_that_it_can_be_closed_or_what_went_wrong():
    assert "You can close this page" in page.RECEIVED.render()[1].decode()
    assert "sign in again from the notebook" in page.UNAWAITED.render()[1].decode()


def test_only_an_answer_that_was_taken_leaves_the_history():
    assert [shown for shown in PAGES if b"replaceState" in shown.render()[1]] == [page.RECEIVED]
