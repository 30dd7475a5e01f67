"""Links objects that `images` doesn't know into the process, by way of LLVM."""

from __future__ import annotations

import itertools
from typing import Any

import llvmlite.binding as llvm

from funcgrad.backends.llvm.native.target import Target


class Linker:
    """LLVM's linker in this process."""

    def __init__(self, target: Target):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
        )
        # Worker threads run compiled code to the very end of the process: this is never closed.
        self._jit = llvm.create_lljit_compiler(machine, suppress_errors=True)
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
