"""What is true on disk: the database, our own state beside it, and the search index. Synchronous; knows no trio."""
