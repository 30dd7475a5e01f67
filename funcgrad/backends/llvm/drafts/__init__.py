"""Drafts of steps as this processor runs them.

- `bands`: products of many short rows and what consumes them, some rows at a time
"""
