"""Compiling LLVM IR to machine code in this process.

One `Engine` per target takes a module (text or llvmlite's builder), verifies it, runs LLVM's
default pipeline with both vectorizers, emits an object and links it into the process. The two
long calls run outside llvmlite's lock, each in an LLVM context of its own, so that threads
compile in parallel. Linked code stays as long as the process, or if asked for as its `Library`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakValueDictionary, finalize

import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.binding import ffi

from funcgrad.backends.llvm import objects

Source: TypeAlias = ir.Module | str | Callable[[], ir.Module | str]

# What the levels of x86-64 add to each other, as its ABI defines them.
LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}

# What LLVM calls for conversions of float16 on a target that doesn't convert them.
HALF_CALLS = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")

_init_lock = threading.Lock()
_engines: dict[Target, Engine] = {}
_immortal: list[Any] = []


class InvalidIR(ValueError):
    """A module that LLVM's parser or verifier rejects: a bug of whoever wrote the IR.

    >>> issubclass(InvalidIR, ValueError)
    True
    """


@dataclass(frozen=True)
class Target:
    """What code is generated for: an LLVM triple, a cpu name and a feature string.

    >>> Target.host().generic().features
    ''
    """

    triple: str
    cpu: str
    features: str

    @staticmethod
    def host() -> Target:
        """The processor that runs this process, with all its features.

        >>> Target.host() == Target.host()
        True
        """
        features = llvm.get_host_cpu_features()
        if features.get("avx512f"):
            # LLVM models some processors as preferring 256-bit vectors; every one that has
            # AVX-512 gains from full registers in long loops.
            features["prefer-256-bit"] = False
        flat = _sound(features)
        return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), flat)

    @staticmethod
    def named(name: str) -> Target:
        """A target by name: "host", "generic", or a level of x86-64 such as "x86-64-v3".

        Raises ValueError for any other name, and for a level that this processor doesn't reach:
        its code would end the process.

        >>> Target.named("generic") == Target.host().generic()
        True
        """
        host = Target.host()
        if name in ("host", "generic"):
            return host if name == "host" else host.generic()
        if name not in LEVELS or not host.triple.startswith("x86_64"):
            known = ["host", "generic", *(LEVELS if host.triple.startswith("x86_64") else ())]
            raise ValueError(f"FUNCGRAD_TARGET must be one of {', '.join(known)}, got {name!r}")
        features = llvm.get_host_cpu_features()
        wanted = llvm.FeatureMap()
        for level, added in LEVELS.items():
            wanted.update(dict.fromkeys(added, True))
            if level == name:
                break
        if lacking := [feature for feature in wanted if not features.get(feature)]:
            raise ValueError(
                f"FUNCGRAD_TARGET={name}: this processor ({host.cpu}) has no {', '.join(lacking)}"
            )
        return Target(host.triple, name, _sound(wanted))

    def generic(self) -> Target:
        """The oldest processor of the same architecture: code that runs on all of them.

        >>> Target("x86_64-unknown-linux-gnu", "znver5", "+avx512f").generic().cpu
        'x86-64'
        """
        cpu = "x86-64" if self.triple.startswith("x86_64") else "generic"
        return Target(self.triple, cpu, "")

    def has(self, feature: str) -> bool:
        """Whether the target has an LLVM feature, such as "avx2" or "neon".

        >>> Target("x86_64-unknown-linux-gnu", "znver5", "+avx512f,-neon").has("avx512f")
        True
        """
        return f"+{feature}" in self.features.split(",")

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions that convert float16 to float32 and back.

        >>> Target("x86_64-unknown-linux-gnu", "x86-64", "").converts_halves
        False
        """
        return self.has("f16c") or self.triple.startswith(("aarch64", "arm64"))

    @property
    def vector_bits(self) -> int:
        """Width of the vector registers: 512 with AVX-512, 256 with AVX, else 128.

        >>> Target("x86_64-unknown-linux-gnu", "znver3", "+avx,+avx2").vector_bits
        256
        """
        return 512 if self.has("avx512f") else 256 if self.has("avx") else 128


class Library:
    """The machine code of one module, linked into this process."""

    def __init__(
        self,
        engine: Engine,
        module: Source,
        level: int,
        obj: bytes,
        tracker: Any,
        uses: Collection[Library] = (),
    ):
        self._engine = engine
        self._module = module
        self._tracker = tracker
        self._uses = uses  # code that this calls must live on
        self.level = level
        self.object_code = obj
        self.made = time.perf_counter()
        self.from_disk = False

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
        >>> ctypes.CFUNCTYPE(ctypes.c_int)(lib.address("one"))()
        1
        """
        try:
            return int(self._tracker[name])
        except KeyError:
            raise KeyError(f"compiled module exports no symbol {name!r}") from None

    @property
    def llvm_text(self) -> str:
        """The optimized LLVM IR, made anew at each reading.

        >>> "ret i32 3" in engine().compile("define i32 @three() { ret i32 3 }").llvm_text
        True
        """
        return self._engine._inspect(self.source, self.level, lambda _, mod: str(mod))

    def asm(self) -> str:
        """The assembly of the target, made anew at each call.

        >>> "ret" in engine().compile("define i32 @four() { ret i32 4 }").asm()
        True
        """
        return self._engine._inspect(self.source, self.level, lambda tm, mod: tm.emit_assembly(mod))


class Engine:
    """Compiles modules for one target; shared by all threads. See `engine`."""

    def __init__(self, target: Target):
        _initialize()
        self.target = target
        self._lock = threading.Lock()
        self._kept: dict[str, Library] = {}
        self._libraries: WeakValueDictionary[str, Library] = WeakValueDictionary()
        self._dead: deque[Any] = deque()
        self._building: dict[str, threading.Event] = {}
        self._symbols: dict[str, int] = {}
        self._serial = itertools.count()
        self._jit = llvm.create_lljit_compiler(self._target_machine(), suppress_errors=True)
        # Worker threads run compiled code to the very end of the process: never unload it.
        _immortal.append(self._jit)

    def bind(self, name: str, address: int) -> None:
        """Give modules compiled from now on the symbol *name* at *address*.

        Raises ValueError for a null address, or a name that already means another address
        (modules are cached by their text, so a name keeps its meaning).

        >>> engine().bind("fg_example", 4096)
        """
        if not address:
            raise ValueError(f"bind: the address of {name!r} is null")
        with self._lock:
            if self._symbols.setdefault(name, address) != address:
                raise ValueError(f"bind: {name!r} is already bound to another address")

    def compile(
        self,
        module: Source,
        level: int = 3,
        key: str | None = None,
        links: Mapping[str, Library] | None = None,
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
        `Library` has died, at one of the next compilations; other code stays. Raises InvalidIR if
        LLVM rejects the module, and RuntimeError if a declared symbol is found nowhere.

        >>> lib = engine().compile("define i64 @twice(i64 %x) {  %y = add i64 %x, %x ret i64 %y }")
        >>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lib.address("twice"))(21)
        42
        """
        name = self._name(_text(module) if key is None else key, level, key is None)
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
            library = self._build(module, level, name, links)
            with self._lock:
                self._libraries[name] = library
                if links is None:
                    self._kept[name] = library
            return library
        finally:
            with self._lock:
                del self._building[name]
            mine.set()

    def compiled(self, key: str, level: int) -> bool:
        """Whether `compile` with this key and level has only to link, or nothing to do.

        >>> engine().compiled("never compiled", 3)
        False
        """
        name = self._name(key, level, False)
        return name in self._libraries or objects.exists(name)

    def _name(self, text: str, level: int, is_text: bool) -> str:
        salt = f"{llvm.llvm_version_info}|{self.target}|{level}|{is_text}|"
        return hashlib.sha256((salt + text).encode()).hexdigest()

    def _build(
        self, module: Source, level: int, name: str, links: Mapping[str, Library] | None
    ) -> Library:
        self._unload()
        kept = objects.load(name)
        obj, defined, declared = kept or self._inspect(_text(module), level, _emit)
        linker = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
        for symbol in defined:
            linker.export_symbol(symbol)
        for symbol in {*declared, *(set(HALF_CALLS) & set(self._symbols))}:
            if links and symbol in links:
                linker.import_symbol(symbol, links[symbol].address(symbol))
            elif address := self._symbols.get(symbol):
                linker.import_symbol(symbol, address)
            elif not symbol.startswith("llvm.") and not llvm.address_of_symbol(symbol):
                raise RuntimeError(
                    f"cannot link a compiled module: symbol {symbol!r} is neither bound nor in the "
                    "process; bind(name, address) it before compiling"
                )
        try:
            tracker = linker.link(self._jit, f"fg{next(self._serial)}")
        except RuntimeError as error:
            raise RuntimeError(f"cannot link a compiled module: {error}") from None
        if kept is None:
            objects.save(name, obj, defined, declared)
        if links is None:
            tracker.detach()
            return Library(self, module, level, obj, tracker)
        library = Library(self, module, level, obj, tracker, set(links.values()))
        # A library may die anywhere, and LLVM doesn't like to be called anywhere.
        finalize(library, self._dead.append, tracker).atexit = False
        library.from_disk = kept is not None
        return library

    def _unload(self) -> None:
        """Let go of code whose libraries have died."""
        while self._dead:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._dead.popleft().close()

    def _target_machine(self, level: int = 3) -> Any:
        target = self.target
        return llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=3 if level else 0,
            reloc="pic",
            codemodel="small",
        )

    def _inspect(self, text: str, level: int, what: Callable[[Any, Any], Any]) -> Any:
        """Optimize *text* in a fresh context and apply *what* to (target machine, module)."""
        machine = self._target_machine(level)
        with llvm.create_context() as context, _parse(text, context) as mod:
            mod.triple = self.target.triple
            mod.data_layout = str(machine.target_data)
            if level:
                tuning = llvm.create_pipeline_tuning_options(speed_level=level)
                tuning.loop_vectorization = tuning.slp_vectorization = level == 3
                tuning.loop_interleaving = tuning.loop_unrolling = level == 3
                builder = llvm.create_pass_builder(machine, tuning)
                passes = builder.getModulePassManager() if level > 1 else _few_passes()
                _unlocked(ffi.lib.LLVMPY_RunNewModulePassManager)(passes, mod, builder)
                # llvmlite 0.50 forgets it: 60 KB a module.
                ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
                passes.detach()
            return what(machine, mod)


@functools.cache
def default_target() -> Target:
    """What programs are compiled for: FUNCGRAD_TARGET from the environment, else this processor.

    Raises ValueError as `Target.named` does.

    >>> default_target() is default_target()
    True
    """
    return Target.named(os.environ.get("FUNCGRAD_TARGET") or "host")


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


def _sound(features: Any) -> str:
    """Features as LLVM reads them, without those that it generates wrong code for."""
    if features.get("avx512vl") and llvm.llvm_version_info >= (22,):
        # LLVM 22 folds the extraction of sign masks of short vectors to instructions that can't
        # name the upper 16 registers, which then read others (llvm-project issue 191304).
        # Without this feature, short vectors stay out of those. Last: what implies it goes too.
        del features["avx512vl"]
        return f"{features.flatten()},-avx512vl"
    return str(features.flatten())


def _text(module: Source) -> str:
    return str(module() if callable(module) else module)


def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _few_passes() -> Any:
    """LLVM's least pipeline takes as long as code generation; these take a tenth of it."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    return passes


def _parse(text: str, context: Any) -> Any:
    """Parse and verify: LLVM's passes crash the process on a module that is not valid."""
    try:
        mod = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise InvalidIR(f"LLVM cannot parse the module: {error}") from None
    try:
        mod.verify()
    except RuntimeError as error:
        mod.close()
        raise InvalidIR(f"LLVM rejects the module: {error}") from None
    return mod


def _emit(machine: Any, mod: Any) -> tuple[bytes, list[str], list[str]]:
    """Object code, and the names of the symbols it defines and declares."""
    defined, declared = [], []
    for value in itertools.chain(mod.functions, mod.global_variables):
        if value.is_declaration:
            declared.append(value.name)
        elif value.linkage is llvm.Linkage.external:
            defined.append(value.name)
    with ffi.OutputString() as error:
        emit = _unlocked(ffi.lib.LLVMPY_TargetMachineEmitToMemory)
        buffer = emit(machine, mod, 1, error)
        if not buffer:
            raise RuntimeError(f"LLVM cannot emit an object: {error}")
    try:
        size = ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size), defined, declared
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(function: Any) -> Any:
    """The C function under llvmlite's wrapper, which would hold one global lock meanwhile.

    Sound here because context, module, pass builder and target machine belong to one thread.
    """
    return getattr(function, "_cfn", function)
