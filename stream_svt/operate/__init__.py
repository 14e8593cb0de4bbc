"""Operators' tools behind the command line: check, lint, control, send, rejects, audit."""
