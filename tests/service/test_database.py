"""The tables of the service."""

from rolloutlab.service.database import _MIGRATIONS, open_service_database
from rolloutlab.store.sqlite import Database


def test_a_service_from_before_signing_in_keeps_its_models(tmp_path):
    before = Database(tmp_path / "service.db", _MIGRATIONS[:3])
    with before.write() as connection:
        connection.execute(
            "INSERT INTO models (id, entity, project, name, base_model, run_id, created_at)"
            " VALUES ('m', 'local', 'lab', 'practice', 'practice', 'r', '2026-01-01')"
        )
    before.close()
    now = open_service_database(tmp_path)
    assert [row["id"] for row in now.read("SELECT id FROM models")] == ["m"]
    assert now.read("SELECT count(*) AS n FROM oauth_tokens")[0]["n"] == 0
    now.close()


def test_what_came_of_a_grant_goes_with_it(tmp_path):
    database = open_service_database(tmp_path)
    with database.write() as connection:
        connection.execute("INSERT INTO oauth_grants VALUES (1, 'c', 'a notebook', 'r', 'u', 'x', 1)")
        connection.execute("INSERT INTO oauth_tokens VALUES ('h', 1, 'access', 'lab:read', 1.0, 0)")
        connection.execute("DELETE FROM oauth_grants")
    assert not database.read("SELECT * FROM oauth_tokens")
    database.close()


def test_models_of_before_forks_began_at_the_base(tmp_path):
    before = Database(tmp_path / "service.db", _MIGRATIONS[:6])
    with before.write() as connection:
        connection.execute("INSERT INTO models VALUES ('m', 'local', 'lab', 'practice', 'practice', 'r', '', 3, 'b')")
    before.close()
    now = open_service_database(tmp_path)
    assert [tuple(row) for row in now.read("SELECT last_step, base, made_from FROM models")] == [(3, "b", None)]
    now.close()
