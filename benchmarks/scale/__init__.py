"""Figures at a user's size: many datasets and monitors, one bad record, a busy core, a memory limit."""
