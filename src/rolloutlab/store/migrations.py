"""Schema migrations of a lab, one SQL script per version; released scripts never change."""

FIRST = """
    CREATE TABLE collections (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, generation INTEGER NOT NULL, created_at TEXT NOT NULL,
        UNIQUE (name, generation)
    );
    CREATE TABLE groups (
        id INTEGER PRIMARY KEY, collection_id INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
        position INTEGER NOT NULL, prompt TEXT NOT NULL, row TEXT NOT NULL,
        UNIQUE (collection_id, position)
    );
    CREATE TABLE trajectories (
        id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
        position INTEGER NOT NULL, items TEXT NOT NULL, model TEXT NOT NULL, step INTEGER, sampling TEXT NOT NULL,
        created_at TEXT NOT NULL, reward REAL, components TEXT NOT NULL DEFAULT '{}', source TEXT,
        UNIQUE (group_id, position)
    );
    CREATE TABLE edits (
        id INTEGER PRIMARY KEY, trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
        at TEXT NOT NULL, who TEXT NOT NULL, source TEXT NOT NULL, old REAL, new REAL NOT NULL,
        components TEXT NOT NULL
    );
    CREATE INDEX edits_of_trajectory ON edits (trajectory_id, id);
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, service TEXT NOT NULL, model TEXT NOT NULL, collections TEXT NOT NULL,
        options TEXT NOT NULL, created_at TEXT NOT NULL
    )
"""

PLANS_AND_UNDO = """
    ALTER TABLE collections ADD COLUMN plan TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE collections ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE collections ADD COLUMN completion_tokens INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE collections ADD COLUMN deleted_at TEXT;
    ALTER TABLE groups ADD COLUMN script TEXT NOT NULL DEFAULT '[[]]';
    ALTER TABLE trajectories ADD COLUMN pending INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE trajectories ADD COLUMN extra TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE jobs ADD COLUMN status TEXT;
    CREATE INDEX trajectories_of_group ON trajectories (group_id, pending, reward);
    ALTER TABLE edits RENAME TO first_edits;
    CREATE TABLE edits (
        id INTEGER PRIMARY KEY, trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
        change INTEGER NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, source TEXT, note TEXT, undoes INTEGER,
        old REAL, old_components TEXT NOT NULL, old_source TEXT, new REAL, components TEXT NOT NULL,
        CHECK (new IS NOT NULL OR undoes IS NOT NULL)
    );
    INSERT INTO edits
        SELECT id, trajectory_id, id, at, who, source, NULL, NULL,
            old, coalesce(lag(components) OVER told, '{}'), lag(source) OVER told, new, components
        FROM first_edits WINDOW told AS (PARTITION BY trajectory_id ORDER BY id);
    DROP TABLE first_edits;
    CREATE INDEX edits_of_trajectory ON edits (trajectory_id, id);
    CREATE INDEX edits_of_change ON edits (change)
"""

OUTLINES = """
    CREATE TABLE outlines (
        trajectory_id INTEGER PRIMARY KEY REFERENCES trajectories ON DELETE CASCADE,
        tokens TEXT NOT NULL, finish_reason TEXT, preview TEXT NOT NULL, answer TEXT
    );
    CREATE INDEX outlines_without_text ON outlines (trajectory_id, tokens, finish_reason);
    CREATE TRIGGER outline_is_out_of_date AFTER UPDATE OF items, extra ON trajectories
    BEGIN
        DELETE FROM outlines WHERE trajectory_id = OLD.id;
    END;
    DROP INDEX trajectories_of_group;
    CREATE INDEX trajectories_without_items ON trajectories
        (group_id, pending, position, reward, source, components, model, step);
    CREATE INDEX trajectories_to_finish ON trajectories (group_id) WHERE pending > 0;
    CREATE INDEX edits_that_undo ON edits (undoes) WHERE undoes IS NOT NULL
"""

EVENTS_OF_JOBS = """
    CREATE TABLE job_events (
        job_id TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE ON UPDATE CASCADE, events TEXT NOT NULL
    )
"""

SCORINGS = """
    CREATE TABLE scorings (
        id INTEGER PRIMARY KEY, change INTEGER NOT NULL, collection_id INTEGER NOT NULL REFERENCES collections
            ON DELETE CASCADE,
        at TEXT NOT NULL, who TEXT NOT NULL, source TEXT NOT NULL, names TEXT NOT NULL, code TEXT NOT NULL,
        options TEXT NOT NULL, style TEXT NOT NULL
    );
    CREATE INDEX scorings_of_collection ON scorings (collection_id, id);
    CREATE INDEX scorings_of_change ON scorings (change);
    CREATE TABLE reward_outcomes (
        trajectory_id INTEGER PRIMARY KEY REFERENCES trajectories ON DELETE CASCADE, change INTEGER NOT NULL,
        function TEXT, error TEXT, message TEXT, line TEXT, at TEXT
    );
    CREATE INDEX outcomes_of_change ON reward_outcomes (change);
    CREATE TRIGGER failure_has_a_reward AFTER UPDATE OF reward ON trajectories WHEN NEW.reward IS NOT NULL
    BEGIN
        UPDATE reward_outcomes SET function = NULL, error = NULL, message = NULL, line = NULL
        WHERE trajectory_id = NEW.id AND error IS NOT NULL;
    END;
    CREATE TABLE reward_functions (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, used_at TEXT NOT NULL);
    CREATE TABLE reward_results (
        trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
        function_id INTEGER NOT NULL REFERENCES reward_functions ON DELETE CASCADE,
        result TEXT NOT NULL, PRIMARY KEY (trajectory_id, function_id)
    ) WITHOUT ROWID;
    ALTER TABLE edits RENAME TO first_edits;
    CREATE TABLE edits (
        id INTEGER PRIMARY KEY, trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
        change INTEGER NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL, source TEXT, note TEXT, undoes INTEGER,
        old REAL, old_components TEXT NOT NULL, old_source TEXT, new REAL, components TEXT NOT NULL,
        CHECK (new IS NOT NULL OR undoes IS NOT NULL OR note IS NOT NULL)
    );
    INSERT INTO edits SELECT * FROM first_edits;
    DROP TABLE first_edits;
    CREATE INDEX edits_of_trajectory ON edits (trajectory_id, id);
    CREATE INDEX edits_of_change ON edits (change);
    CREATE INDEX edits_that_undo ON edits (undoes) WHERE undoes IS NOT NULL
"""
"""A reward can be cleared by an edit that has a note."""

RESUMED_SCORINGS = """
    ALTER TABLE scorings ADD COLUMN resumes INTEGER;
    DROP TRIGGER failure_has_a_reward;
    ALTER TABLE reward_outcomes RENAME TO first_outcomes;
    CREATE TABLE reward_outcomes (
        trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE, change INTEGER NOT NULL,
        function TEXT, error TEXT, message TEXT, line TEXT, at TEXT, PRIMARY KEY (trajectory_id, change)
    ) WITHOUT ROWID;
    INSERT INTO reward_outcomes SELECT trajectory_id, change, function, error, message, line, at FROM first_outcomes;
    DROP TABLE first_outcomes;
    CREATE INDEX outcomes_of_change ON reward_outcomes (change)
"""
"""Outcomes are stored for each change, so that those of an earlier scoring are back when a later one is undone."""

ANSWERS_WITHOUT_REASONING = "DELETE FROM outlines WHERE instr(coalesce(answer, preview), 'think>')"
"""Deletes summaries of earlier versions that have reasoning in the answer. Missing summaries are written again."""

SPENDING = """
    CREATE TABLE spending (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, service TEXT NOT NULL, model TEXT NOT NULL, purpose TEXT NOT NULL,
        collection_id INTEGER REFERENCES collections ON DELETE SET NULL, amount INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
        trained_tokens INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX spending_at_service ON spending (service, amount);
    CREATE INDEX spending_of_collection ON spending (collection_id) WHERE collection_id IS NOT NULL
"""
"""amount: in 1e-12 dollars, with what is set aside for requests that may be under way."""

ORIGINS = """
    CREATE TABLE origins (
        service TEXT NOT NULL, model TEXT NOT NULL, made_from TEXT, sweep TEXT, settings TEXT NOT NULL, seed INTEGER,
        PRIMARY KEY (service, model)
    ) WITHOUT ROWID
"""

RUN_NOTES = """
    CREATE TABLE run_notes (
        job_id TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE ON UPDATE CASCADE, note TEXT NOT NULL,
        tags TEXT NOT NULL
    )
"""

MIGRATIONS = [
    FIRST,
    PLANS_AND_UNDO,
    OUTLINES,
    EVENTS_OF_JOBS,
    SCORINGS,
    RESUMED_SCORINGS,
    ANSWERS_WITHOUT_REASONING,
    SPENDING,
    ORIGINS,
    RUN_NOTES,
]
READABLE_FROM = MIGRATIONS.index(ORIGINS)
"""The least number of applied migrations with which a read-only lab opens. What later ones add then counts as empty."""
