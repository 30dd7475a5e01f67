"""Names of a package whose modules load when a name is first asked for (PEP 562).

So that what few programs use makes no `import funcgrad` slower. Type checkers read the same names
in the imports of the package's `if TYPE_CHECKING:` block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

from funcgrad.core.process import fork
from funcgrad.errors import no_attribute


def names(
    package: str, held: Mapping[str, str], parts: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `held` has the names that each module holds, with
    blanks between; `parts` are modules of the package itself.

    Names that are not there are AttributeErrors that say what JAX's are here.

    >>> load, listed = names("funcgrad", {"funcgrad.tree.functions": "map leaves"}, ["tree"])
    >>> load("tree").__name__, "leaves" in listed()
    ('funcgrad.tree', True)
    """
    homes = {name: module for module, written in held.items() for name in written.split()}

    def load(name: str) -> object:
        if name in parts:
            return fork.import_module(f"{package}.{name}")
        if name in homes:
            value = getattr(fork.import_module(homes[name]), name)
            vars(sys.modules[package])[name] = value  # found without this function from now on
            return value
        if name == "__all__":  # which `import *` asks for
            return [n for n in listed() if not n.startswith("_")]
        raise no_attribute(package, name)

    def listed() -> list[str]:
        held = vars(sys.modules[package])
        public = {*homes, *parts, *held.get("__all__", ())}
        return sorted(public | {name for name, value in held.items() if _is_public(name, value)})

    return load, listed


def _is_public(name: str, value: object) -> bool:
    """Whether a package's global is for users: its imports for itself, and modules of it that are
    loaded and not said to be `parts`, are not."""
    if name.startswith("_"):
        return name.startswith("__")  # `__doc__`, and its like
    return name != "TYPE_CHECKING" and not isinstance(value, ModuleType)
