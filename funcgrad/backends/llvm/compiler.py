"""LLVM at work: text in, object code or a look at the module out.

Loaded when something has to be compiled: what lies on disk is run without LLVM. The two long calls
run outside llvmlite's lock, each in an LLVM context of its own, so that threads compile in
parallel.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from funcgrad.backends.llvm.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


# The attribute of a function that has variants, weak_odr ones, for vectors.
VARIANTS = '"vector-function-abi-variant"'


class InvalidIR(ValueError):
    """A module that LLVM's parser or verifier rejects: a bug of whoever wrote the IR.

    >>> issubclass(InvalidIR, ValueError)
    True
    """


def machine(target: Target, level: int = 3) -> Any:
    """LLVM's code generator for a target.

    >>> machine(Target.host()).triple == Target.host().triple
    True
    """
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=3 if level else 0,
        reloc="pic",
        codemodel="small",
    )


def inspect(target: Target, text: str, level: int, what: Callable[[Any, Any], Any]) -> Any:
    """Optimize a module in a fresh context and apply *what* to (target machine, module).

    Raises InvalidIR if LLVM rejects the text.

    >>> inspect(Target.host(), "define i32 @f() { ret i32 3 }", 3, lambda tm, mod: "@f" in str(mod))
    True
    """
    tm = machine(target, level)
    with llvm.create_context() as context, _parse(text, context) as mod:
        mod.triple = target.triple
        mod.data_layout = str(tm.target_data)
        if level:
            tuning = llvm.create_pipeline_tuning_options(speed_level=level)
            tuning.loop_vectorization = tuning.slp_vectorization = level == 3
            tuning.loop_interleaving = tuning.loop_unrolling = level == 3
            builder = llvm.create_pass_builder(tm, tuning)
            passes = builder.getModulePassManager() if level > 1 else _few_passes()
            _run(passes, mod, builder)
            if level == 3 and VARIANTS in text:
                _inline_variants(mod, builder)
        return what(tm, mod)


def _run(passes: Any, mod: Any, builder: Any) -> None:
    _unlocked(ffi.lib.LLVMPY_RunNewModulePassManager)(passes, mod, builder)
    # llvmlite 0.50 forgets it: 60 KB a module.
    ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
    passes.detach()


def _inline_variants(mod: Any, builder: Any) -> None:
    """Put variants of functions for vectors, which the vectorizer calls, where they are called."""
    for function in mod.functions:
        if function.linkage is llvm.Linkage.weak_odr:
            function.linkage = llvm.Linkage.internal
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_global_dead_code_eliminate_pass()
    _run(passes, mod, builder)


def emit(target: Target, text: str, level: int) -> tuple[bytes, list[str], list[str]]:
    """Object code, and the names of the symbols it defines and declares.

    >>> emit(Target.host(), "define i32 @f() { ret i32 3 }", 0)[1]
    ['f']
    """
    return inspect(target, text, level, _object)


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


def _object(tm: Any, mod: Any) -> tuple[bytes, list[str], list[str]]:
    defined, declared = [], []
    for value in itertools.chain(mod.functions, mod.global_variables):
        if value.is_declaration:
            declared.append(value.name)
        elif value.linkage is llvm.Linkage.external:
            defined.append(value.name)
    with ffi.OutputString() as error:
        buffer = _unlocked(ffi.lib.LLVMPY_TargetMachineEmitToMemory)(tm, mod, 1, error)
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


class Linker:
    """Links objects that `images` doesn't know into the process, by way of LLVM."""

    def __init__(self, target: Target):
        # Worker threads run compiled code to the very end of the process: this is never closed.
        self._jit = llvm.create_lljit_compiler(machine(target), suppress_errors=True)
        self._serial = itertools.count()

    def link(self, obj: bytes, exports: list[str], imports: dict[str, int]) -> Any:
        """What finds the addresses of an object's symbols, and unloads it by `close()`."""
        builder = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        for symbol, address in imports.items():
            builder.import_symbol(symbol, address)
        try:
            return builder.link(self._jit, f"fg{next(self._serial)}")
        except RuntimeError as error:
            raise RuntimeError(f"cannot link a compiled module: {error}") from None
