"""Drafts of steps as this processor runs them.

- `attention`: attention, by its formula or as steps
- `cuts`: how these are cut into tasks
- `bands`: products of many short rows and what consumes them, some rows at a time
- `finishes`: products of integers, whose tasks make of their rows what consumes these
"""
