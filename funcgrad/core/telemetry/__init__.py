"""What is told of a process while it runs, to whoever asked for it.

- `events`: events that the package tells of, and who listens
- `log`: the package's logger
- `spans`: spans of time that are recorded while a profile is taken
"""
