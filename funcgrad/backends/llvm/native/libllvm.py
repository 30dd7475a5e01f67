"""LLVM, by the C functions of llvmlite's shared library.

`llvmlite.binding` declares all of them and imports much for that, which takes longer than to
compile a small kernel. These are the few that a compiler needs, declared when they are first
called, as they are in the versions of llvmlite that `pyproject.toml` admits. The long calls let go
of Python's lock: each module has an LLVM context of its own, so that threads compile in parallel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from funcgrad.backends.llvm.native.target import library_path
from funcgrad.core.process import fork

# For each function its result and arguments: p a pointer, s a text, o a text that it gives back,
# i a number, z a size, b a flag, - nothing. Where an argument came or went with a version (the
# context's, the pipeline's last), one too many does no harm.
_FUNCTIONS = {
    "InitializeNativeTarget": "i", "InitializeNativeAsmPrinter": "i", "GetVersionInfo": "i",
    "InitializeAllTargetInfos": "-", "InitializeAllTargets": "-", "InitializeAllTargetMCs": "-",
    "InitializeAllAsmPrinters": "-",
    "GetProcessTriple": "-o", "GetHostCPUName": "-o", "GetHostCPUFeatures": "io",
    "GetTargetFromTriple": "pso", "CreateTargetMachine": "ppsssissiis",
    "DisposeTargetMachine": "-p", "CreateTargetMachineData": "pp", "DisposeTargetData": "-p",
    "CopyStringRepOfTargetData": "-po", "TargetMachineEmitToMemory": "pppio",
    "GetBufferStart": "pp", "GetBufferSize": "zp", "DisposeMemoryBuffer": "-p",
    "ContextCreate": "pb", "ContextDispose": "-p", "ParseAssembly": "ppso", "VerifyModule": "ipo",
    "DisposeModule": "-p", "SetTarget": "-ps", "SetDataLayout": "-ps",
    "PrintModuleToString": "-po", "DisposeString": "-p",
    "ModuleFunctionsIter": "pp", "FunctionsIterNext": "pp", "DisposeFunctionsIter": "-p",
    "ModuleGlobalsIter": "pp", "GlobalsIterNext": "pp", "DisposeGlobalsIter": "-p",
    "GetValueName": "sp", "GetLinkage": "ip", "SetLinkage": "-pi", "IsDeclaration": "ip",
    "CreatePipelineTuningOptions": "p", "DisposePipelineTuningOptions": "-p",
    "PTOSetLoopInterleaving": "-pb", "PTOSetLoopVectorization": "-pb",
    "PTOSetSLPVectorization": "-pb", "PTOSetLoopUnrolling": "-pb",
    "CreatePassBuilder": "ppp", "DisposePassBuilder": "-p",
    "buildPerModuleDefaultPipeline": "ppii", "CreateNewModulePassManager": "p",
    "RunNewModulePassManager": "-ppp", "DisposeNewModulePassManger": "-p",
    "module_AddAlwaysInlinerPass": "-p", "module_AddSROAPass": "-p",
    "module_AddSimplifyCFGPass": "-p", "module_AddInstCombinePass": "-p",
    "module_AddGlobalDCEPass": "-p",
}  # fmt: skip
_LONG = {"ParseAssembly", "VerifyModule", "RunNewModulePassManager", "TargetMachineEmitToMemory"}
_TYPES = {
    "p": ctypes.c_void_p, "s": ctypes.c_char_p, "o": ctypes.POINTER(ctypes.c_void_p),
    "i": ctypes.c_int, "z": ctypes.c_size_t, "b": ctypes.c_bool, "-": None,
}  # fmt: skip
_TUNED = ("LoopInterleaving", "LoopUnrolling", "LoopVectorization", "SLPVectorization")
_EXTERNAL, _WEAK_ODR, _INTERNAL = 0, 6, 8  # linkages


class _Library:
    """The functions by their names."""

    def __init__(self) -> None:
        path = library_path()
        if hasattr(os, "RTLD_LAZY"):
            # Mapping 170 MB takes a while, in which Python's own function keeps its lock.
            loader = ctypes.CDLL(None).dlopen
            loader.restype, loader.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
            loader(os.fsencode(path), os.RTLD_LAZY)
        self._short, self._long = ctypes.PyDLL(path), ctypes.CDLL(path)
        self.InitializeNativeTarget()
        self.InitializeNativeAsmPrinter()

    def __getattr__(self, name: str) -> Any:
        library = self._long if name in _LONG else self._short
        function = getattr(library, f"LLVMPY_{name}")
        function.restype, *arguments = [_TYPES[kind] for kind in _FUNCTIONS[name]]
        function.argtypes = arguments
        setattr(self, name, function)
        return function


_lock = fork.lock()
_loaded: _Library | None = None


def _lib() -> _Library:
    global _loaded
    if _loaded is None:
        # A child would have no thread that goes on loading.
        with fork.undivided(), _lock:
            if _loaded is None:
                _loaded = _Library()
    return _loaded


def load() -> None:
    """Load the library, if it isn't; the first call of another function does so, too.

    >>> load()
    """
    _lib()


class _Text:
    """What takes a text that LLVM gives back."""

    def __init__(self) -> None:
        self._place = ctypes.c_void_p()
        self._as_parameter_ = ctypes.byref(self._place)

    def take(self) -> str:
        """The text, "" if there is none."""
        address = self._place.value
        if not address:
            return ""
        text = ctypes.string_at(address).decode("utf-8", "replace")
        _lib().DisposeString(address)
        return text


def _told(name: str) -> str:
    text = _Text()
    getattr(_lib(), name)(text)
    return text.take()


def version() -> tuple[int, ...]:
    """LLVM's version.

    >>> version() > (14,)
    True
    """
    number = _lib().GetVersionInfo()
    return number >> 16, number >> 8 & 255, number & 255


def host() -> tuple[str, str, dict[str, bool]]:
    """The triple of this process, the name of its processor, and which features that has.

    >>> triple, cpu, features = host()
    >>> "-" in triple, cpu != ""
    (True, True)
    """
    given = [f for f in _told("GetHostCPUFeatures").split(",") if f]
    features = {f[1:]: f[0] == "+" for f in given}
    return _told("GetProcessTriple"), _told("GetHostCPUName"), features


class Machine:
    """LLVM's code generator for a target; used by one thread, in a `with`.

    optimize: how carefully it works, 0 to 3. Raises RuntimeError for a target that LLVM lacks.

    >>> with Machine(*host()[:2], "", 0) as machine:
    ...     machine.layout[0]
    'e'
    """

    def __init__(self, triple: str, cpu: str, features: str, optimize: int):
        lib, error = _lib(), _Text()
        target = lib.GetTargetFromTriple(triple.encode(), _Text())
        if not target:  # another architecture than this process's
            for what in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
                getattr(lib, f"InitializeAll{what}")()
            target = lib.GetTargetFromTriple(triple.encode(), error)
        if not target:
            raise RuntimeError(error.take())
        texts = triple.encode(), cpu.encode(), features.encode()
        # (LLVM would pass floats in registers for integers.)
        abi = b"lp64d" if triple.startswith("riscv64") else b""
        relocation = b"static" if triple.startswith("wasm") else b"pic"
        self._as_parameter_ = lib.CreateTargetMachine(
            target, *texts, optimize, relocation, b"small", 0, 0, abi
        )
        if not self._as_parameter_:
            raise RuntimeError(f"LLVM has no code generator for {triple}, {cpu}")
        self.triple = triple
        self._builders: dict[bool, tuple[int, int]] = {}

    def builder(self, vectorize: bool) -> int:
        """What makes pipelines of passes, with or without those that unroll and vectorize loops.

        One for all modules: each would leave 1.5 KB when it is disposed of.
        """
        if vectorize not in self._builders:
            lib = _lib()
            tuning = lib.CreatePipelineTuningOptions()
            for name in (
                "LoopInterleaving",
                "LoopUnrolling",
                "LoopVectorization",
                "SLPVectorization",
            ):
                getattr(lib, f"PTOSet{name}")(tuning, vectorize)
            self._builders[vectorize] = lib.CreatePassBuilder(self, tuning), tuning
        return self._builders[vectorize][0]

    @property
    def layout(self) -> str:
        """How types lie in memory, in LLVM's words."""
        lib, text = _lib(), _Text()
        data = lib.CreateTargetMachineData(self)
        lib.CopyStringRepOfTargetData(data, text)
        lib.DisposeTargetData(data)
        return text.take()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        for builder, tuning in self._builders.values():
            _lib().DisposePassBuilder(builder)
            _lib().DisposePipelineTuningOptions(tuning)
        _lib().DisposeTargetMachine(self)


class Module:
    """A module in a context of its own, for a machine; used by one thread, in a `with`.

    machine: may become another one of the same processor, whose code it then is

    Raises ValueError for a text that LLVM doesn't parse, or doesn't find valid.

    >>> with Machine(*host()[:2], "", 0) as machine, Module("@x = global i32 3", machine) as m:
    ...     m.symbols()
    (['x'], [])
    """

    def __init__(self, text: str, machine: Machine):
        lib, error = _lib(), _Text()
        self.machine = machine
        self._context = lib.ContextCreate(True)
        self._as_parameter_ = lib.ParseAssembly(self._context, text.encode(), error)
        if not self._as_parameter_:
            self._fail("cannot parse", error)
        # LLVM's passes end the process on a module that isn't valid.
        if lib.VerifyModule(self, error):
            self._fail("rejects", error)
        lib.SetTarget(self, machine.triple.encode())
        lib.SetDataLayout(self, machine.layout.encode())

    def _fail(self, how: str, error: _Text) -> None:
        self.__exit__()
        raise ValueError(f"LLVM {how} the module: {error.take()}")

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        if self._as_parameter_:
            _lib().DisposeModule(self)
        _lib().ContextDispose(self._context)

    def optimize(self, level: int, vectorize: bool) -> None:
        """LLVM's passes of a level, with or without what unrolls and vectorizes loops."""
        builder = self.machine.builder(vectorize)
        self._run(_lib().buildPerModuleDefaultPipeline(builder, level, 0), builder)

    def tidy(self, *passes: str) -> None:
        """Some passes by their names, in order."""
        lib = _lib()
        manager = lib.CreateNewModulePassManager()
        for name in passes:
            getattr(lib, f"module_Add{name}Pass")(manager)
        self._run(manager, self.machine.builder(False))

    def _run(self, manager: int, builder: int) -> None:
        _lib().RunNewModulePassManager(manager, self, builder)
        _lib().DisposeNewModulePassManger(manager)

    def code(self, assembly: bool = False) -> bytes:
        """Object code, or the text of an assembler."""
        lib, error = _lib(), _Text()
        buffer = lib.TargetMachineEmitToMemory(self.machine, self, not assembly, error)
        if not buffer:
            raise RuntimeError(f"LLVM cannot emit an object: {error.take()}")
        code = ctypes.string_at(lib.GetBufferStart(buffer), lib.GetBufferSize(buffer))
        lib.DisposeMemoryBuffer(buffer)
        return code

    def symbols(self) -> tuple[list[str], list[str]]:
        """The names that others see, and those that the module takes from others."""
        lib = _lib()
        defined, declared = [], []
        for value in self._values("Functions", "Globals"):
            name = lib.GetValueName(value).decode()
            if lib.IsDeclaration(value):
                declared.append(name)
            elif lib.GetLinkage(value) == _EXTERNAL:
                defined.append(name)
        return defined, declared

    def hide_variants(self) -> None:
        """Make functions of the linkage weak_odr the module's own."""
        lib = _lib()
        for value in self._values("Functions"):
            if lib.GetLinkage(value) == _WEAK_ODR:
                lib.SetLinkage(value, _INTERNAL)

    def _values(self, *kinds: str) -> Iterator[int]:
        lib = _lib()
        for kind in kinds:
            values = getattr(lib, f"Module{kind}Iter")(self)
            while value := getattr(lib, f"{kind}IterNext")(values):
                yield value
            getattr(lib, f"Dispose{kind}Iter")(values)

    def __str__(self) -> str:
        text = _Text()
        _lib().PrintModuleToString(self, text)
        return text.take()
