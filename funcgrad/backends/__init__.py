"""Compilers of programs: what `core.backend` loads when a program is first compiled."""
