"""A pytest plugin under which `jax` is funcgrad, and one line of JSON tells of each test.

`import jax.numpy` gives a module whose names are those of `funcgrad.numpy`. A name that isn't there
is `Missing`: a file that mentions it can be collected, a test that uses it fails and names it.
JAX's helpers of tests come from the checkout; what they use of JAX's internals is in
`jax_internals.py`, and all else under `jax._src` is looked for among the public names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FROM_CHECKOUT = (
    "jax._src.test_util", "jax._src.public_test_util", "jax._src.test_warning_util",
    "jax._src.test_loader", "jax._src.internal_test_util.lax_test_util",
)  # fmt: skip
# Where internal names are looked for, after the modules that a path itself names.
COMMON = ("funcgrad", "funcgrad.lax", "funcgrad.dtypes", "funcgrad.sharding", "funcgrad.core.ir",
          "funcgrad.errors")  # fmt: skip


class MissingName(Exception):
    """A test used a name that is not there."""


class Missing:
    """A name that is not there. Its attributes, and what its calls give while files are
    collected, are missing, too; called in a test it raises.
    """

    collecting = True

    def __init__(self, path: str):
        self._path = path

    def __repr__(self) -> str:
        return f"<missing {self._path}>"

    @property
    def __name__(self) -> str:
        return self._path

    def __index__(self) -> int:
        return 1

    def __setitem__(self, index: object, value: object) -> None: ...

    def _raise(self) -> None:
        raise MissingName(f"{self._path} is not there")

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "cache_clear":  # of caches that are not here
            return lambda: None
        return Missing(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not Missing.collecting:
            self._raise()
        if len(args) == 1 and not kwargs and isinstance(args[0], type):
            return args[0]
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return functools.wraps(args[0])(lambda *_, **__: self._raise())
        return Missing(f"{self._path}()")

    def __getitem__(self, index: object) -> Missing:
        if not Missing.collecting:
            self._raise()
        return self

    def __iter__(self) -> Any:
        return iter((self,))

    def __mro_entries__(self, bases: tuple) -> tuple:
        return (object,)

    def __or__(self, other: object) -> Missing:
        return self

    __ror__ = __add__ = __radd__ = __or__

    def __enter__(self) -> None:
        self._raise()

    def __exit__(self, *error: object) -> None: ...


class StandIn(types.ModuleType):
    """A module of JAX's: own names first, then those of our modules, then `Missing`."""

    def __init__(self, name: str, own: Callable[[str], Mapping[str, Any]], ours: tuple[str, ...]):
        super().__init__(name)
        self.__dict__.update(own(name))
        self._own, self._public = own, "_src" not in name
        self.__path__: list[str] = []
        self._ours = ours

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__} has no attribute {name}")
        found = self._find(name)
        # Names of tests are made of names of functions, and aliases have one name here.
        if isinstance(found, types.FunctionType) and found.__name__ != name:
            found = functools.wraps(found)(functools.partial(found))
            found.__name__ = name
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        ours = dir(importlib.import_module(self._ours[0])) if self._public else ()
        return sorted({n for n in (*self.__dict__, *ours) if not n.startswith("_")})

    def _find(self, name: str) -> Any:
        whole = f"{self.__name__}.{name}"
        if whole in FROM_CHECKOUT or self._own(whole):
            return importlib.import_module(whole)
        for module in self._ours:
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                continue
            if isinstance(found, types.ModuleType):
                return importlib.import_module(f"{self.__name__}.{name}")
            return found
        if self.__name__ == "jax._src":
            return importlib.import_module(f"{self.__name__}.{name}")
        return Missing(f"{self.__name__}.{name}")


def our_modules(name: str) -> tuple[str, ...]:
    """The modules of funcgrad in which the names of a module of JAX are looked for."""
    parts = name.split(".")[1:]
    internal = parts[:1] == ["_src"]
    parts = parts[internal:]
    own = [".".join(["funcgrad", *parts[:n]]) for n in range(len(parts), 0, -1)]
    own.append(".".join(["funcgrad.experimental", *parts]))
    return (*own, *COMMON) if internal else (".".join(["funcgrad", *parts]),)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `jax` and all below it, whatever is installed under that name."""

    def __init__(self, checkout: Path, own: Callable[[str], Mapping[str, Any]], root: str = "jax"):
        self._checkout, self._own, self._root = checkout, own, root

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.split(".")[0] not in (self._root, self._root + "lib"):
            return None
        if name in FROM_CHECKOUT:
            place = self._checkout.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, place)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        return StandIn(spec.name, self._own, our_modules(spec.name))

    def exec_module(self, module: types.ModuleType) -> None: ...


def pytest_configure(config: Any) -> None:
    library, checkout = os.environ["STANDIN_LIBRARY"], Path(os.environ["STANDIN_CHECKOUT"])
    if library != "funcgrad":
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    root = os.environ["STANDIN_FOR"]
    internals = importlib.import_module(f"{root}_internals")
    sys.meta_path.insert(0, Finder(checkout, internals.own_names, root))


def pytest_collection_modifyitems(items: list) -> None:
    # By name, so that it is the same tests whichever library they were collected with.
    every = int(os.environ.get("STANDIN_EVERY", "1"))
    only = os.environ.get("STANDIN_ONLY")  # a file of names: of tests that failed before
    names = None if only is None else set(Path(only).read_text().splitlines())
    items[:] = [
        item
        for item in items
        if zlib.crc32(plain(item.nodeid).encode()) % every == 0
        and (names is None or plain(item.nodeid) in names)
    ]


def plain(test: str) -> str:
    """A test's name without its file's place, and without addresses."""
    return re.sub("0x[0-9a-f]+", "0x", test.split("/")[-1])


def pytest_collection_finish(session: Any) -> None:
    Missing.collecting = False


def pytest_collectreport(report: Any) -> None:
    if report.outcome == "failed":
        _write(report.nodeid, "not collected", str(report.longrepr))


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
        _write(report.nodeid, outcome, str(report.longrepr) if outcome == "failed" else "")


def _write(test: str, outcome: str, text: str) -> None:
    with open(os.environ["STANDIN_RESULTS"], "a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "text": text[-4000:]}) + "\n")
