"""Micro-kernels as libraries of their own: each is compiled once, and if a product calls it.

A way to multiply has many, for all that may be left of a matrix at its edges, which are most of its
code; a product of known sizes calls few. So a way calls them by addresses in its module, which a
program sets (`place`) for those that its products call, or is linked to all of them (`linked`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from funcgrad.backends.llvm.gemm.kernels import Kernels, Micro
from funcgrad.backends.llvm.gemm.pack import FORMATS, Format, Tile
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import PTR, VOID, Callee, Code, declare
from funcgrad.backends.llvm.native.engine import Engine, Library
from funcgrad.backends.llvm.native.sources import generator


def symbol(dtype: str, kernel: Micro) -> str:
    """The function that the kernel's library defines.

    >>> symbol("float32", Micro("packed", 14, 2))
    'fg_micro_float32_packed14x2'
    """
    return f"fg_micro_{dtype}_{kernel.name}"


def place(way: str, kernel: Micro) -> str:
    """Where the module of a way's function has the address of a kernel that it calls.

    >>> place("fg_gemm_float32_float32_packed", Micro("packed", 14, 2))
    'fg_gemm_float32_float32_packed_packed14x2'
    """
    return f"{way}_{kernel.name}"


def placed(way: str) -> Callable[[Micro], Callee]:
    """What calls kernels by their addresses."""

    def find(kernel: Micro) -> Callee:
        kind = ir.FunctionType(VOID, kernel.arguments)
        return lambda code: ir.Called(address(code, way, kernel), kind)

    return find


def address(code: Code, way: str, kernel: Micro) -> ir.Value:
    """What a kernel's place holds."""
    name = place(way, kernel)
    if name not in code.module.globals:
        where = ir.GlobalVariable(code.module, PTR, name)
        where.initializer = ir.Constant(PTR, None)
    return code.load(code.module.globals[name], PTR)


def linked(module: ir.Module, fmt: Format, used: set[Micro]) -> Callable[[Micro], Callee]:
    """What declares kernels, and notes them: their libraries are to be there (`provide`)."""

    def find(kernel: Micro) -> ir.Function:
        used.add(kernel)
        kind = ir.FunctionType(VOID, kernel.arguments)
        return declare(module, symbol(fmt.name, kernel), kind)

    return find


def provide(target: Engine, dtype: str, kernel: Micro) -> None:
    """Let modules that declare a kernel find it."""
    target.provide(symbol(dtype, kernel), partial(library, target, dtype, kernel))


def library(target: Engine, dtype: str, kernel: Micro) -> Library:
    """A kernel's code."""
    name = symbol(dtype, kernel)

    def write() -> ir.Module:
        module, fmt = ir.Module("micro"), FORMATS[dtype]
        kernels = Kernels(module, fmt, Tile.of(target.target, fmt), target.target)
        kernels.write(kernel, name).linkage = "external"
        return module

    return target.compile(write, level=1, key=f"{name} {generator('gemm.micro')}")
