"""The cases, a file a family or two. Each has `cases(full)`, which yields them in full or tiny."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache

from benchmarks.case import Case

MODULES = (
    "calls",
    "elementwise",
    "complex_numbers",
    "reductions",
    "transposes",
    "gemm",
    "conv",
    "few_bits",
    "attention",
    "training",
    "gpt",
    "cnn",
    "nets",
    "recurrent",
    "loops",
    "derivatives",
    "indexing",
    "recsys",
    "sorting",
    "randomness",
    "linalg",
    "first_calls",
    "processes",
)
SIZES = ("full", "tiny")


@cache
def all_cases(size: str = "full") -> dict[str, Case]:
    """The cases by key, as large as they are measured, or as small as a test wants them."""
    if size not in SIZES:
        raise ValueError(f"there are the sizes {', '.join(SIZES)}, not {size!r}")
    found: dict[str, Case] = {}
    for name in MODULES:
        module = importlib.import_module(f"benchmarks.cases.{name}")
        for case in module.cases(size == "full"):
            if case.key in found:
                raise ValueError(f"two cases are called {case.key}")
            found[case.key] = case
    return found


def find(key: str, size: str = "full") -> Case:
    """The case of a key."""
    return all_cases(size)[key]


def chosen(words: Iterable[str], size: str = "full") -> list[Case]:
    """The cases whose key contains one of some words; all of them if there are no words.

    ValueError for a word that no key contains.
    """
    found, words = all_cases(size), list(words)
    for word in words:
        if not any(word in key for key in found):
            families = ", ".join(dict.fromkeys(case.family for case in found.values()))
            raise ValueError(f"no case contains {word!r}; the families are {families}")
    return [case for key, case in found.items() if not words or any(w in key for w in words)]
