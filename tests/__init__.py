"""Tests. Real parts: a real process on a free port, real clients, real SQLite files that others write."""
