"""The files of the swarm: workers' Markdown memory, their missions, handoffs and episodes."""
