"""What a lab has spent at services: durable, and never beyond a limit, also of several kernels."""

import pytest

from rolloutlab.api.prices import Tokens
from rolloutlab.store.lab import Lab
from rolloutlab.store.spending import JUDGING, Account

HERE = Account("https://paid.example", "small", "sampling", limit=100)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def test_an_entry_is_set_aside_and_reduced_to_what_it_has_cost(lab):
    entry, granted = lab.spending.set_aside(HERE, None, 10, 60)
    assert (granted, lab.spending.at(HERE.service)) == (60, 60)
    lab.spending.settle(entry, 7, Tokens(3, 4))
    assert lab.spending.at(HERE.service) == 7
    assert lab.spending.at("https://other.example") == 0


def test_what_the_limit_leaves_is_granted_and_less_than_is_needed_is_not(lab):
    lab.spending.set_aside(HERE, None, 10, 80)
    assert lab.spending.set_aside(HERE, None, 21, 50) == (None, 0)
    entry, granted = lab.spending.set_aside(HERE, None, 20, 50)
    assert granted == 20
    assert lab.spending.set_aside(HERE, entry, 1, 1) == (entry, 0)
    assert lab.spending.at(HERE.service) == 100


def test_a_limit_that_is_spent_already_or_was_lowered_grants_nothing(lab):
    lab.spending.set_aside(Account(HERE.service, "small", "sampling"), None, 150, 150)
    assert lab.spending.set_aside(HERE, None, 0, 10) == (None, 0)


def test_two_kernels_share_a_limit_and_a_killed_one_has_spent_what_it_had_set_aside(lab, tmp_path):
    killed = Lab(tmp_path / "lab.db")
    assert killed.spending.set_aside(HERE, None, 10, 90)[1] == 90
    assert lab.spending.set_aside(HERE, None, 5, 50)[1] == 10
    killed.close()
    assert lab.spending.set_aside(HERE, None, 1, 1)[1] == 0


def test_the_tokens_of_judges_are_by_collection_and_model(lab):
    letters, numbers = lab.open_collection("letters"), lab.open_collection("numbers")
    for collection, model, tokens in (
        (letters, "judge", Tokens(5, 6)),
        (letters, "judge", Tokens(1, 1)),
        (letters, "other", Tokens(2, 3)),
        (numbers, "judge", Tokens(7, 8)),
    ):
        entry, _ = lab.spending.set_aside(Account("embedded", model, JUDGING), None, 0, 0)
        lab.spending.settle(entry, 0, tokens, collection)
    entry, _ = lab.spending.set_aside(Account("embedded", "small", "sampling"), None, 0, 0)
    lab.spending.settle(entry, 0, Tokens(9, 9), letters)
    assert lab.spending.judged() == {
        letters.id: {"judge": Tokens(6, 7), "other": Tokens(2, 3)},
        numbers.id: {"judge": Tokens(7, 8)},
    }
