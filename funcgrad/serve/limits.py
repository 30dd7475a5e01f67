"""What a server's limits, and its models' names, may be."""

from __future__ import annotations

import math
import numbers
from typing import Any

from funcgrad.errors import ArgumentError


def check_count(of: str, what: str, n: Any) -> None:
    """Raise ArgumentError unless it is a positive integer.

    >>> from funcgrad.serve.limits import check_count
    >>> check_count("Batching", "max_queue", 0)
    Traceback (most recent call last):
      ...
    funcgrad.errors.ArgumentError: Batching: max_queue must be a positive integer, got 0
    """
    is_integer = isinstance(n, numbers.Integral) and not isinstance(n, bool)
    if not is_integer or n < 1:
        raise ArgumentError(f"{of}: {what} must be a positive integer, got {n!r}")


def check_seconds(of: str, what: str, seconds: Any, zero: bool = False) -> None:
    """Raise ArgumentError unless they are a positive number; or none, where `zero` may be."""
    is_number = isinstance(seconds, numbers.Real) and math.isfinite(seconds)
    if not is_number or seconds < 0 or (seconds == 0 and not zero):
        least = "not negative" if zero else "positive"
        raise ArgumentError(
            f"{of}: {what} is in seconds and must be finite and {least}, got {seconds!r}"
        )


def check_name(of: str, name: Any, version: Any) -> None:
    """Raise ArgumentError unless a model can be asked for by its name and version: texts, which
    are parts of a path."""
    for what, text in (("name", name), ("version", version)):
        if not isinstance(text, str) or not text or "/" in text:
            raise ArgumentError(f"{of}: {what} must be a text without '/', got {text!r}")
