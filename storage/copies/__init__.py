"""Copies of the memories: backup and restore as files, export and import as lines."""
