"""Write the table of JAX's signatures that `tests/test_signatures.py` reads.

Run with a Python that has JAX: `python tools/jax_signatures.py > tests/jax_signatures.json`. The
table holds, of each public function, the names of its parameters alone, `*` before those that are
given by keyword only, `/` after those given by position only.
"""

import importlib
import inspect
import json
import sys

MODULES = ("numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers")


def parameters(function: object) -> str | None:
    """The names of a function's parameters as they are written between its parentheses."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in signature.parameters.values()]
    text = str(inspect.Signature(bare, __validate_parameters__=False))
    return text[1:-1]


def table(package: str) -> dict[str, dict[str, str]]:
    """The functions of a package's modules with their parameters."""
    found: dict[str, dict[str, str]] = {}
    for name in MODULES:
        module = importlib.import_module(f"{package}.{name}")
        functions = {k: getattr(module, k) for k in dir(module) if not k.startswith("_")}
        shown = {k: parameters(f) for k, f in functions.items()
                 if callable(f) and not inspect.isclass(f)}  # fmt: skip
        found[name] = {k: text for k, text in sorted(shown.items()) if text is not None}
    return found


if __name__ == "__main__":
    import jax

    json.dump({"version": jax.__version__, **table("jax")}, sys.stdout, indent=1)
    print()
