"""The way of `last` for images and kernels of int8, whose results are exact in int32.

What a tile reaches is sums of 4 elements, and a kernel's points, taken 4 times as large, of 9: so
int16 holds both, and pairs of channels are multiplied and added by one instruction. Results are 4
times those that are wanted, to the last bit, and 32 bits hold these.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.gemm.pack import I16, constant
from funcgrad.backends.llvm.gemm.winograd.last import WinogradLast
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Callee, Code, Int, Record


class WinogradBytes(WinogradLast):
    """The way of convolutions of int8. Channels are a multiple of `rewrites.tiles.CHANNELS`."""

    name, along = "winograd_bytes", 2

    def _points(self, code: Code, call: Record, to: ir.Value, read: Callable) -> None:
        cols, b = self.tile.cols, code.b
        low, half = constant(self.vec, 0xFFFF), constant(self.vec, 16)
        with code.range(0, call["channels"], 2) as channel:
            pair = [self.points_of(code, call, channel + i, read) for i in range(2)]
            for part, (x, y) in enumerate(zip(*pair, strict=True)):
                where = call["part"] * part + channel // 2 * cols
                both = b.or_(b.and_(x, low), b.shl(y, half))
                self.store(code, both, code.at(to, where, self.acc))

    def each_vector(self, code: Code, count: Int, body: Callable) -> None:
        with code.range(0, count, 2 * self.lanes) as i:
            body(i, None)

    def channels_of(self, code: Code, place: ir.Value, i: Int, mask: ir.Value | None) -> ir.Value:
        count, kind = 2 * self.lanes, self.fmt.storage
        x = code.load(code.at(place, i, kind), ir.VectorType(kind, count), 1)
        return code.b.sext(x, ir.VectorType(I16, count))

    def kernel(self, vectors: int) -> Callee:
        return self.parts.kernels.pairs(self.rows, vectors)

    def _output(self) -> ir.Function:
        """void(call, sums, beside, begin, end): AᵀmA of tiles [begin, end)."""
        code = Code(self.parts.module, "winograd_bytes_output", [PTR, PTR, PTR, I64, I64])
        two = constant(self.vec, 2)
        self.each_result(code, lambda value: code.b.ashr(value, two))
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def write_results(self, code: Code, args: tuple) -> None:
        code.call(self.output, *args)
