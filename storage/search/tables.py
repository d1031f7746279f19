"""The tables of the index file."""

import apsw

from storage.rows import SEARCHED

FORMAT = 4
"""Of the file, its analysis included: another number in it means a rebuild."""

# Every character but the space belongs to a token: storage/search/text.py has decided already.
_TOKENIZE = apsw.format_sql_value(
    "ascii tokenchars " + apsw.format_sql_value("".join(map(chr, range(1, 128))).replace(" ", ""))
)
_SHARED_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE high_water (tier TEXT PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE counts (tier TEXT, agent TEXT, rows INTEGER NOT NULL, terms INTEGER NOT NULL, "
    "PRIMARY KEY (tier, agent)) WITHOUT ROWID",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
)
_TIER_TABLES = (
    "CREATE VIRTUAL TABLE {tier}_fts USING fts5"
    "(terms, content='', contentless_delete=1, detail=none, tokenize={tokenize})",
    "CREATE TABLE {tier}_documents (row INTEGER PRIMARY KEY, agent INTEGER NOT NULL, session INTEGER, "
    "created_s REAL, expires_s REAL, digest INTEGER NOT NULL, sentence INTEGER NOT NULL, terms BLOB NOT NULL)",
    "CREATE INDEX {tier}_by_session ON {tier}_documents (session) WHERE session IS NOT NULL",
    "CREATE INDEX {tier}_by_time ON {tier}_documents (created_s)",
)


def create_tables(db: apsw.Connection) -> None:
    """Make all of them in an empty file; runs in a transaction."""
    for statement in _SHARED_TABLES:
        db.execute(statement)
    for tier in SEARCHED:
        for statement in _TIER_TABLES:
            db.execute(statement.format(tier=tier, tokenize=_TOKENIZE))
    db.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
