"""What a worker's life is made of: resume, renewal, promotion, archive, and who is asked for a task."""
