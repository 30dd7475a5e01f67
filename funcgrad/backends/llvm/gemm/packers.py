"""Packers as libraries of their own: the ways to multiply and attention call the same ones.

A module that packs declares the packer; code that calls it is linked to the library, which is
compiled when the first such code is. Written into each module, they would be a third of its text.
"""

from __future__ import annotations

from functools import partial

from funcgrad.backends.llvm.gemm.pack import FORMATS, Format, Tile, pack_function
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, VOID, declare
from funcgrad.backends.llvm.native.engine import Engine, Library
from funcgrad.backends.llvm.native.sources import generator


def packer(module: ir.Module, width: int, tile: Tile, fmt: Format) -> ir.Function:
    """The packer of panels of a width, declared in a module: see `pack_function`.

    width: the rows or the columns of a tile of the format, which may be one without pairs
    """
    kind = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64, I64, I64])
    return declare(module, _symbol(width, tile, fmt), kind)


def provide_packers(target: Engine, dtype: str) -> None:
    """Let modules that declare packers of a format find them."""
    fmt = FORMATS[dtype]
    own = Tile.of(target.target, fmt)
    for tile in {own, own.plain()}:
        for width in (tile.rows, tile.cols):
            make = partial(_library, target, width, tile, fmt)
            target.provide(_symbol(width, tile, fmt), make)


def _symbol(width: int, tile: Tile, fmt: Format) -> str:
    kinds = {1: "", 2: "_pairs", 4: "_biased" if width == tile.rows else "_fours"}
    return f"fg_pack_{fmt.name}_{width}{kinds[tile.along]}"


def _library(target: Engine, width: int, tile: Tile, fmt: Format) -> Library:
    name = _symbol(width, tile, fmt)

    def write() -> ir.Module:
        module = ir.Module("packer")
        pack_function(module, name, width, tile, fmt, target.target, public=True)
        return module

    return target.compile(write, level=1, key=f"{name} {generator('gemm.packers')}")
