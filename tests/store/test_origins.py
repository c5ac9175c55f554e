"""Origins of models: what they were made for is in the lab, for every view that groups them."""

from rolloutlab.store.lab import Lab
from rolloutlab.store.migrations import MIGRATIONS, READABLE_FROM
from rolloutlab.store.origins import Origin
from rolloutlab.store.sqlite import Database

ORIGIN = Origin("lab/practice@2", "letters", {"learning_rate": 1e-3, "stop": ["a"]}, 1)


def test_the_origin_of_a_model_is_there_when_the_lab_opens_again(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    assert lab.origins.all() == {}
    lab.origins.set("embedded", "lab/practice.letters", ORIGIN)
    lab.origins.set("https://example.org", "lab/practice.letters", Origin())
    lab.close()
    lab = Lab(tmp_path / "lab.db")
    stored = {("embedded", "lab/practice.letters"): ORIGIN, ("https://example.org", "lab/practice.letters"): Origin()}
    assert lab.origins.all() == stored
    lab.close()


def test_a_later_origin_takes_the_place_of_an_earlier_one(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    lab.origins.set("embedded", "lab/a", ORIGIN)
    lab.origins.set("embedded", "lab/a", Origin(seed=2))
    assert lab.origins.all() == {("embedded", "lab/a"): Origin(seed=2)}
    lab.close()


def test_a_lab_of_an_earlier_version_gets_the_table_when_it_opens(tmp_path):
    Database(tmp_path / "lab.db", MIGRATIONS[:READABLE_FROM], durable=False).close()
    lab = Lab(tmp_path / "lab.db")
    lab.origins.set("embedded", "lab/a", ORIGIN)
    assert lab.origins.all() == {("embedded", "lab/a"): ORIGIN}
    lab.close()
