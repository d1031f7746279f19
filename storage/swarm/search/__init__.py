"""The search over the swarm's files."""
