"""The edges: REST, MCP, the command line, settings, logs, and the composition root (`serve.py`)."""
