"""A worker's notes, in the words of Claude's memory tool."""
