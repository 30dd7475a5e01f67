"""The names that JAX has, and the page that says of each where it is here, or why it isn't.

python tools/jax_names.py record > tests/jax_names.json   # with a Python that has JAX
python tools/jax_names.py page > docs/jax_names.md        # with funcgrad
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    "", "tree", "tree_util", "numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn",
    "nn.initializers", "random", "scipy.linalg", "scipy.special", "scipy.stats", "scipy.signal",
    "scipy.ndimage", "scipy.fft", "scipy.optimize", "scipy.integrate", "scipy.interpolate",
    "scipy.cluster.vq", "scipy.sparse.linalg", "scipy.spatial.transform", "image", "ops", "dtypes",
    "errors", "debug", "sharding", "stages", "typing", "ad_checkpoint", "custom_batching",
    "custom_derivatives", "flatten_util", "test_util", "dlpack", "experimental.checkify",
    "experimental.ode", "profiler", "monitoring", "core", "extend.core",
)  # fmt: skip

# Why names are not there, by module and name, or by module for all that is missing there.
REASONS: dict[str, str] = json.loads((ROOT / "funcgrad" / "jax_names_missing.json").read_text())


def record() -> dict[str, list[str]]:
    """The public names of JAX's modules, submodules left out."""
    found = {}
    for module in MODULES:
        held = importlib.import_module(f"jax.{module}" if module else "jax")
        names = (n for n in dir(held) if not n.startswith("_"))
        found[module] = sorted(
            n for n in names if not isinstance(getattr(held, n, None), types.ModuleType)
        )
    return found


def missing(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """By module: the names that are not there."""
    found = {}
    for module, wanted in names.items():
        try:
            ours = importlib.import_module(f"funcgrad.{module}" if module else "funcgrad")
        except ImportError:
            ours = None
        found[module] = [n for n in wanted if not hasattr(ours, n)]
    return found


def reason(module: str, name: str) -> str:
    """Why a name is not there; an empty string where nothing says so."""
    full = f"{module}.{name}" if module else name
    return REASONS.get(full) or REASONS.get(f"{module}.*", "")


def page() -> str:
    """The page of all names."""
    names = json.loads((ROOT / "tests" / "jax_names.json").read_text())
    lacking = missing(names)
    there = sum(map(len, names.values())) - sum(map(len, lacking.values()))
    lines = [
        "# JAX's names",
        "",
        "Made by `tools/jax_names.py`, of JAX's public names; a test keeps it as it would be made.",
        f"{there} of {sum(map(len, names.values()))} names are there: under the same name in the",
        "module of the same name (`jax.lax.sin` is `funcgrad.lax.sin`). What differs in meaning",
        "stands in [differences_from_jax.md](differences_from_jax.md).",
        "",
        "## Not there",
        "",
        "| Name | Why, or what instead |",
        "|---|---|",
    ]
    for module, absent in lacking.items():
        by_reason: dict[str, list[str]] = {}
        for name in absent:
            full = f"{module}.{name}" if module else name
            by_reason.setdefault(reason(module, name), []).append(f"`{full}`")
        lines += [f"| {', '.join(group)} | {why} |" for why, group in by_reason.items()]
    lines += ["", "## There", "", "| Module | Names |", "|---|---|"]
    for module, wanted in names.items():
        present = [f"`{n}`" for n in wanted if n not in lacking[module]]
        if present:
            lines.append(f"| `funcgrad{module and '.'}{module}` | {', '.join(present)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        json.dump(record(), sys.stdout, indent=0)
        print()
    elif sys.argv[1:] == ["page"]:
        sys.stdout.write(page())
    else:
        sys.exit(__doc__)
