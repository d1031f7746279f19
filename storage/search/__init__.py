"""The search index: text analysis and the FTS5 file that follows the tables. A cache; never the truth."""
