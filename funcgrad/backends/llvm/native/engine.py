"""Machine code in this process: compiled, found on disk, linked, and unloaded when it is dead.

One `Engine` per target takes a module (text, or what writes it) to `compiler`, which is loaded
only then, lays the object out as an image and maps it (`images`). Code on disk names what it calls,
so that `Engine.load` finds a program with all of its parts. Linked code stays as long as the
process, or if asked for as its `Library`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary, finalize

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.images import Image, Turning, lay_out, process_address
from funcgrad.backends.llvm.native.later import Later, has_an_order, is_soon
from funcgrad.backends.llvm.native.sources import linking
from funcgrad.backends.llvm.native.target import Target, default_target, llvm_version
from funcgrad.core.process import fork

if TYPE_CHECKING:
    from funcgrad.backends.llvm.native import ir
    from funcgrad.backends.llvm.native.libllvm import Module

compiler = Late("funcgrad.backends.llvm.native.compiler")
linker = Late("funcgrad.backends.llvm.native.linker")

Source: TypeAlias = "ir.Module | str | Callable[[], ir.Module | str]"
Links: TypeAlias = "Mapping[str, Library] | Callable[[], Mapping[str, Library]]"

# What LLVM calls for conversions of float16 on a target that doesn't convert them.
HALF_CALLS = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")

_init_lock = fork.lock()
_engines: dict[Target, Engine] = {}


class Library:
    """The machine code of one module, linked into this process.

    name: what it is called on disk
    uses: the libraries whose code it calls, which live as long
    """

    def __init__(self, engine: Engine, level: int, name: str, code: _Code):
        self._engine = engine
        self._module: Source | None = None
        self._symbols = code.symbols
        self.level = level
        self.name = name
        self.uses = code.uses
        self.size = code.size
        self.from_disk = code.from_disk
        self.made = time.perf_counter()
        self._end: Any = None

    @property
    def source(self) -> str:
        """The LLVM IR before optimization.

        >>> engine().compile("define i32 @two() { ret i32 2 }").source
        'define i32 @two() { ret i32 2 }'
        """
        return _text(self._module)

    def address(self, name: str) -> int:
        """Address of a function or global that the module defines.

        Raises KeyError if it defines none of that name.

        >>> lib = engine().compile("define i32 @one() { ret i32 1 }")
        >>> import ctypes
        >>> ctypes.CFUNCTYPE(ctypes.c_int)(lib.address("one"))()
        1
        """
        try:
            return int(self._symbols[name])
        except KeyError:
            raise KeyError(f"compiled module exports no symbol {name!r}") from None

    @property
    def llvm_text(self) -> str:
        """The optimized LLVM IR, made anew at each reading.

        >>> "ret i32 3" in engine().compile("define i32 @three() { ret i32 3 }").llvm_text
        True
        """
        return self._inspect(str)

    def asm(self) -> str:
        """The assembly of the target, made anew at each call.

        >>> "ret" in engine().compile("define i32 @four() { ret i32 4 }").asm()
        True
        """
        return self._inspect(lambda module: module.code(assembly=True).decode())

    def _inspect(self, what: Callable[[Module], str]) -> str:
        return compiler.compiled(self._engine.target, self.source, self.level, what)


class _Code:
    """A module's code as it was linked: what finds symbols and has `close`, the libraries it calls,
    the bytes of its object."""

    def __init__(self, symbols: Any, uses: set[Library], size: int, from_disk: bool):
        self.symbols, self.uses, self.size, self.from_disk = symbols, uses, size, from_disk


class _Nowhere(dict):
    """The symbols of code that isn't linked: a place that nobody may call, for each."""

    def __missing__(self, name: str) -> int:
        return 0

    def close(self) -> None:
        pass


def _written(links: Links | None) -> _Code:
    """Code for another processor, which `standalone` compiles: what it calls is known."""
    found = links() if callable(links) else links or {}
    return _Code(_Nowhere(), set(found.values()), 0, False)


class Engine:
    """Compiles modules for one target; shared by all threads. See `engine`.

    salt: what all code on disk depends on: the target, LLVM, and how code is linked
    """

    def __init__(self, target: Target):
        self.target = target
        self.salt = f"{llvm_version()}|{target}|{linking()}"
        self._lock = threading.Lock()
        self._kept: dict[str, Library] = {}
        self._libraries: WeakValueDictionary[str, Library] = WeakValueDictionary()
        self._dead: deque[Any] = deque()
        self.later = Later()
        self._building: dict[str, threading.Event] = {}
        self._symbols: dict[str, int | Library | Callable[[], int | Library]] = {}
        self._linker: Any = None

    def bind(self, name: str, to: int | Library) -> None:
        """Give modules compiled from now on the symbol *name*: at an address, or of a library.

        Raises ValueError for a null address, or a name that already means something else
        (modules are cached by their text, so a name keeps its meaning).

        >>> engine().bind("fg_example", 4096)
        """
        if not to:
            raise ValueError(f"bind: the address of {name!r} is null")
        with self._lock:
            known = self._symbols.setdefault(name, to)
            if callable(known):
                self._symbols[name] = to
            elif known != to:
                raise ValueError(f"bind: {name!r} is already bound to another address")

    def provide(self, name: str, make: Callable[[], int | Library]) -> None:
        """As `bind`, but what the symbol means is asked for when code that is linked needs it.

        >>> engine().provide("fg_provided", lambda: 4096)
        """
        with self._lock:
            self._symbols.setdefault(name, make)

    def meaning(self, name: str) -> int | Library | None:
        """What a symbol is bound to, or provided as: an address, or a library that defines it.

        >>> engine().bind("fg_meant", 4096)
        >>> engine().meaning("fg_meant"), engine().meaning("fg_unheard_of")
        (4096, None)
        """
        known = self._symbols.get(name)
        if callable(known):
            made = known()
            now = self._symbols.get(name)  # what makes a function mostly binds its library
            return now if isinstance(now, Library) else made
        return known

    def compile(
        self,
        module: Source,
        level: int = 3,
        key: str | None = None,
        links: Links | None = None,
    ) -> Library:
        """Verify, optimize and link a module; the same text is compiled only once.

        *level*: 3 and 2 are LLVM's, the latter without vectorizing or unrolling loops. 1 is for
        code that is written as it is to run: what lies in the frame comes into registers, and
        what is plainly equal is merged, no more. 0 translates as fast as possible, for code whose
        own time is nothing. *key*, if given, stands for the text, and must change when it does;
        then *module* may be a function, which is called only if the object code is not on disk
        (see `objects`).

        Functions and globals that the module declares come from *links*, then from `bind`, then
        from the process (libc, libm). Code with *links* (which may be empty) is unloaded after its
        `Library` has died; other code stays. A function that gives the links is called when they
        are needed: they may be compiled meanwhile. Code of a `soon` task is optimized later. Raises
        InvalidIR if LLVM rejects the module, RuntimeError if a declared symbol is found nowhere.

        >>> lib = engine().compile("define i64 @twice(i64 %x) {  %y = add i64 %x, %x ret i64 %y }")
        >>> import ctypes
        >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lib.address("twice"))(21)
        42
        """
        name = self._name(_text(module) if key is None else key, level, key is None)

        def build() -> Library:
            if not self.target.runs_here:
                return self._library(_written(links), level, name)
            code = self._found(name, links or {})
            text = _text(module) if code is None and level and is_soon() else ""
            if text and has_an_order(text):
                code = self._translated(text, links or {})
                if code is not None:
                    library = self._library(code, level, name)
                    self.later.add(name, partial(self._optimize, library, text, links or {}))
                    return library
            code = code or self._made(text or module, level, name, links or {})
            return self._library(code, level, name)

        library = self._once(name, build)
        assert library is not None
        with self._lock:
            if library._module is None:
                library._module = module
            if links is None:
                self._kept[name] = library
                library._end.detach()
        return library

    def load(self, name: str) -> Library | None:
        """A library by its name on disk, with the libraries that it calls; None if it or one of
        them isn't there.

        >>> engine().load("0" * 64) is None
        True
        """

        def build() -> Library | None:
            code = self._found(name, {})
            return None if code is None else self._library(code, 0, name)

        return self._once(name, build)

    def compiled(self, key: str, level: int) -> bool:
        """Whether `compile` with this key and level has only to link, or nothing to do.

        >>> engine().compiled("never compiled", 3)
        False
        """
        name = self._name(key, level, False)
        return name in self._libraries or objects.exists(name)

    def after_fork(self) -> None:
        """Wait for none of the threads that compile in the process that this one is a copy of.

        >>> engine().after_fork()
        """
        self._lock = threading.Lock()
        self.later.after_fork()
        self._building.clear()

    def _name(self, text: str, level: int, is_text: bool) -> str:
        return objects.digest(self.salt, f"{level}{is_text}", text)

    def _once(self, name: str, build: Callable[[], Library | None]) -> Library | None:
        """The library of a name, built by one thread; the others wait for it."""
        while True:
            with self._lock:
                known = self._libraries.get(name)
                if known is not None:
                    return known
                event = self._building.get(name)
                if event is None:
                    mine = self._building[name] = threading.Event()
                    break
            event.wait()
        try:
            library = build()
            if library is not None:
                with self._lock:
                    self._libraries[name] = library
            return library
        finally:
            with self._lock:
                del self._building[name]
            mine.set()

    def _library(self, code: _Code, level: int, name: str) -> Library:
        library = Library(self, level, name, code)
        library._end = finalize(library, self._drop, code.symbols)
        # Worker threads run compiled code to the very end of the process.
        library._end.atexit = False
        return library

    def _drop(self, symbols: Any) -> None:
        """A library is dead, which may happen anywhere, and LLVM can't be called anywhere."""
        if sys is None or sys.is_finalizing():
            return
        if isinstance(symbols, Image | Turning):
            symbols.close()
        else:
            self._dead.append(symbols)

    def _found(self, name: str, links: Links) -> _Code | None:
        """The code on disk, linked with what it calls; None if some of that isn't there."""
        kept = objects.load(name)
        if kept is None:
            return None
        head, body = kept
        links = links() if callable(links) else links
        found = {}
        for symbol in head["imports"]:
            at = self._find(symbol, links, head["needs"].get(symbol))
            if at is None:
                return None
            found[symbol] = at
        needs = _needs(found)
        if needs != head["needs"]:
            # The same text, when what it calls was other code: who loads it by name wants this one.
            head["needs"] = needs
            objects.save(name, head, body)
        return self._link(head, body, found, True)

    def _made(self, module: Source, level: int, name: str, links: Links) -> _Code:
        with objects.first(name):
            found = self._found(name, links)
            return found or self._compiled(module, level, name, links)

    def _translated(self, text: str, links: Links) -> _Code | None:
        """Code that is optimized later; None for a target that has no images."""
        head, body, size = compiler.translated(self.target, text, self._file)
        if "object" in head:
            return None
        head["bytes"] = size
        code = self._link(head, body, self._imports(head, links), False)
        code.symbols = Turning(code.symbols)
        return code

    def _optimize(self, library: Library, text: str, links: Links) -> None:
        """Have a library that was translated go on with optimized code."""
        with suppress(RuntimeError, MemoryError):  # it goes on as it is
            better = self._made(text, library.level, library.name, links)
            library.uses |= better.uses
            if isinstance(better.symbols, Image):
                library._symbols.turn(better.symbols)

    def _compiled(self, module: Source, level: int, name: str, links: Links) -> _Code:
        self._unload()
        head, body, size = compiler.compiled(self.target, _text(module), level, self._file)
        found = self._imports(head, links)
        head["needs"] = _needs(found)
        head["bytes"] = size
        code = self._link(head, body, found, False)
        objects.save(name, head, body)
        return code

    def _imports(self, head: dict[str, Any], links: Links) -> dict[str, int | Library]:
        """What code calls of others."""
        links = links() if callable(links) else links
        found = {}
        for symbol in head["imports"]:
            at = self._find(symbol, links, None)
            if at is None:
                raise RuntimeError(
                    f"cannot link a compiled module: symbol {symbol!r} is neither bound nor in the "
                    "process; bind(name, address) it before compiling"
                )
            found[symbol] = at
        return found

    def _file(self, module: Module) -> tuple[dict[str, Any], bytes, int]:
        """What is kept of a module: facts and bytes; and the size of its object."""
        obj = module.code()
        image = lay_out(obj)
        if image is not None:
            return (*image, len(obj))
        defined, declared = module.symbols()
        called = {s for s in declared if not s.startswith("llvm.")}
        called |= set(HALF_CALLS) & set(self._symbols)
        return {"object": defined, "imports": sorted(called)}, obj, len(obj)

    def _find(
        self, symbol: str, links: Mapping[str, Library], need: str | None
    ) -> int | Library | None:
        """What a symbol means: code of *links*, what is bound or provided, what was needed as the
        code was compiled, or an address in the process."""
        if symbol in links:
            return links[symbol]
        known = self._symbols.get(symbol)
        if known is not None:
            return known() if callable(known) else known
        found = self.load(need) if need else None
        return found or process_address(symbol) or None

    def _link(
        self, head: dict[str, Any], body: bytes, found: Mapping[str, int | Library], disk: bool
    ) -> _Code:
        uses = {x for x in found.values() if isinstance(x, Library)}
        addresses = {s: x.address(s) if isinstance(x, Library) else x for s, x in found.items()}
        symbols: Any
        if "object" in head:
            with self._lock:
                if self._linker is None:
                    self._linker = linker.Linker(self.target)
            symbols = self._linker.link(body, head["object"], addresses)
        else:
            symbols = Image(head, body, list(addresses.values()))
        return _Code(symbols, uses, head["bytes"], disk)

    def _unload(self) -> None:
        """Let go of code that LLVM linked and whose libraries have died."""
        while self._dead:
            try:
                self._dead.popleft().close()
            except IndexError:  # another thread was faster
                return


def _needs(found: Mapping[str, int | Library]) -> dict[str, str]:
    """The names of the libraries that define symbols."""
    return {s: x.name for s, x in found.items() if isinstance(x, Library)}


def engine(target: Target | None = None) -> Engine:
    """The engine of a target (by default `default_target`), made at first use.

    >>> engine() is engine(default_target())
    True
    """
    target = target or default_target()
    with _init_lock:
        if target not in _engines:
            _engines[target] = Engine(target)
        return _engines[target]


def here() -> Engine:
    """The engine of the code that this process itself runs, whatever programs are compiled for.

    >>> here() is engine()
    True
    """
    target = default_target()
    return engine(target if target.runs_here else Target.host())


def _text(module: Source | None) -> str:
    return str(module() if callable(module) else module)


@fork.in_child
def _after_fork() -> None:
    for known in _engines.values():
        known.after_fork()
