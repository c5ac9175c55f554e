"""The file of the search index: the SQL of its tables, one script per version."""

MIGRATIONS = (
    """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO state VALUES ('revision', 0), ('horizon', 0);

CREATE TABLE records (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    document TEXT,
    metadata TEXT NOT NULL,
    revision INTEGER NOT NULL
);
CREATE INDEX records_by_revision ON records (revision);

CREATE TABLE vectors (
    row INTEGER PRIMARY KEY REFERENCES records ON DELETE CASCADE,
    vector BLOB NOT NULL
);

CREATE TABLE sparse (
    row INTEGER NOT NULL REFERENCES records ON DELETE CASCADE,
    key TEXT NOT NULL,
    places BLOB NOT NULL,
    numbers BLOB NOT NULL,
    PRIMARY KEY (row, key)
) WITHOUT ROWID;
CREATE INDEX sparse_by_key ON sparse (key);

CREATE TABLE gone (row INTEGER PRIMARY KEY, revision INTEGER NOT NULL);
CREATE INDEX gone_by_revision ON gone (revision);

CREATE VIRTUAL TABLE words USING fts5(document, content='records', content_rowid='row');
CREATE TRIGGER records_in AFTER INSERT ON records WHEN new.document IS NOT NULL BEGIN
    INSERT INTO words (rowid, document) VALUES (new.row, new.document);
END;
CREATE TRIGGER records_out AFTER DELETE ON records WHEN old.document IS NOT NULL BEGIN
    INSERT INTO words (words, rowid, document) VALUES ('delete', old.row, old.document);
END;
CREATE TRIGGER records_on AFTER UPDATE ON records WHEN old.document IS NOT new.document BEGIN
    INSERT INTO words (words, rowid, document) SELECT 'delete', old.row, old.document WHERE old.document IS NOT NULL;
    INSERT INTO words (rowid, document) SELECT new.row, new.document WHERE new.document IS NOT NULL;
END;
""",
    "CREATE TABLE left_out (id TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;",
)
"""`revision` counts transactions; a row has that of its last change, and a row of `gone` that of its end. Readers older
than `horizon`, up to which ends are forgotten, read everything anew. `row` grows and is never used twice. `left_out`
has what could not be made a record, or not wholly."""
