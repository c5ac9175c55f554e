"""Schema of the service's database: models, checkpoints, jobs, events, usage, OAuth grants."""

from pathlib import Path

from rolloutlab.store.sqlite import Database

_MIGRATIONS = [
    """
    CREATE TABLE models (
        id TEXT PRIMARY KEY, entity TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL,
        base_model TEXT NOT NULL, run_id TEXT NOT NULL, created_at TEXT NOT NULL,
        UNIQUE (entity, project, name)
    );
    CREATE TABLE checkpoints (
        model_id TEXT NOT NULL REFERENCES models ON DELETE CASCADE, step INTEGER NOT NULL, metrics TEXT NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (model_id, step)
    );
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, model_id TEXT NOT NULL REFERENCES models ON DELETE CASCADE, status TEXT NOT NULL,
        created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT, step INTEGER, final_step INTEGER, error TEXT,
        cancel_wanted INTEGER NOT NULL DEFAULT 0, idempotency_key TEXT UNIQUE
    );
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE,
        type TEXT NOT NULL, data TEXT NOT NULL
    );
    CREATE INDEX events_of_job ON events (job_id, id)
    """,
    """
    CREATE TABLE usage (
        project TEXT NOT NULL, model TEXT NOT NULL, requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
        PRIMARY KEY (project, model)
    );
    ALTER TABLE models ADD COLUMN last_step INTEGER NOT NULL DEFAULT 0;
    UPDATE models SET last_step = (SELECT coalesce(max(step), 0) FROM checkpoints WHERE model_id = models.id);
    ALTER TABLE jobs ADD COLUMN digest TEXT
    """,
    "ALTER TABLE models ADD COLUMN base TEXT",
    """
    CREATE TABLE oauth_clients (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, secret_hash TEXT, metadata TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE oauth_grants (
        id INTEGER PRIMARY KEY AUTOINCREMENT, client_id TEXT NOT NULL, client_name TEXT NOT NULL,
        resource TEXT NOT NULL, redirect_uri TEXT NOT NULL, challenge TEXT NOT NULL, renews INTEGER NOT NULL
    );
    CREATE TABLE oauth_tokens (
        hash TEXT PRIMARY KEY, grant_id INTEGER NOT NULL REFERENCES oauth_grants ON DELETE CASCADE, kind TEXT NOT NULL,
        scope TEXT NOT NULL, expires_at REAL NOT NULL, used INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX oauth_tokens_of_grant ON oauth_tokens (grant_id);
    CREATE INDEX oauth_grants_of_client ON oauth_grants (client_id)
    """,
    "DROP TABLE oauth_clients",
    "ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'rl'",
    "ALTER TABLE models ADD COLUMN made_from TEXT",
]


def open_service_database(folder: Path) -> Database:
    """Open `service.db` in a folder and migrate it; errors are those of `Database`."""
    return Database(folder / "service.db", _MIGRATIONS, durable=True)
