"""What ways by tiles share where channels come last: `tiles`, with vectors of channels.

Tiles are counted through all images; what one reaches is transformed to rows of channels, one for
each point, which follow each other as tiles do.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.gemm.images.frames import FRAME
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.winograd.tiles import TiledWay
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import TAPS

TILED_LAST = (
    # Images; lines, and pixels in one; those from `low` on are there, so many, others are 0.
    "items", "channels", "x", "x_item", "pitch", "pixel", "y_low", "y_size", "x_low", "x_size",
    # Of results. Tiles of a line, an image, all images, those done at a time. Zeros for a pixel.
    "height", "width", "across", "tiles", "total", "mine", "zeros",
)  # fmt: skip
APART = 16  # elements between points, lest all of a tile's meet in a few lines of the first cache


class TilesLast(TiledWay):
    """A way whose vectors are of channels.

    fields: of its record, `TILED_LAST` first; rows: of the kernel of products
    """

    fields: tuple[str, ...] = TILED_LAST

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.rows = 8 if self.tile.many_registers else 6

    def vectors(self, code: Code, count: Int, body: Callable) -> None:
        """`body` of the first element of each vector of so many, and of a mask for the last one if
        it isn't whole, else None."""
        whole = count // self.lanes * self.lanes
        with code.range(0, whole, self.lanes) as i:
            body(i, None)
        with code.when(whole < count):
            body(whole, code.first_lanes(count - whole, self.lanes))

    def each_tile(self, code: Code, call: Record, begin: Int, end: Int, body: Callable) -> None:
        """`body` of each of tiles [begin, end): how many came before, its image, its first line and
        its first pixel."""
        across, height = call["across"], call["height"]
        rest = begin % call["tiles"]
        item = code.variable(I64, begin // call["tiles"])
        y, x = code.variable(I64, rest // across * 2), code.variable(I64, rest % across * 2)
        with code.range(begin, end) as t:
            now = [Int(code, v.get()) for v in (item, y, x)]
            body(t - begin, *now)
            ends = now[2] + 2 >= across * 2
            last = ends & (now[1] + 2 >= height)
            x.set(ends.select(0, now[2] + 2))
            y.set(last.select(0, now[1] + ends.select(2, 0)))
            item.set(now[0] + last.select(1, 0))

    def pixel(self, code: Code, call: Record, item: Int, y: Int, x: Int) -> ir.Value:
        """Where the channels of a pixel are, or zeros in their place."""
        y, x = y - call["y_low"], x - call["x_low"]
        inside = (y >= 0) & (y < call["y_size"]) & (x >= 0) & (x < call["x_size"])
        place = item * call["x_item"] + y * call["pitch"] + x * call["pixel"]
        there = code.at(call.pointer_at("x"), place, self.fmt.storage)
        return inside.pick(there, call.pointer_at("zeros"))

    def locate(self, code: Code, given: Record, call: Record, of_a: str, of_b: str) -> None:
        """Sets what `TILED_LAST` says of images and tiles, from a call that says of which axes of a
        or b images, lines and pixels are."""
        call["x"] = given["windows"].eq(2).select(given["b"], given["a"])
        for back, (size, step) in enumerate(
            (("width", "pixel"), ("height", "pitch"), ("items", "x_item"))
        ):
            call[size] = self.axis(code, given, f"{of_a}_sizes", f"{of_b}_sizes", back)
            call[step] = self.axis(code, given, f"{of_a}_a", f"{of_b}_b", back)
        call["y_low"] = call["x_low"] = 0
        call["y_size"], call["x_size"] = (call[f] + TAPS - 1 for f in ("height", "width"))
        with code.when(given["frame"].ne(0)):
            self._unframe(code, Record(code, FRAME, given.pointer_at("frame")), call)
        across = call["across"] = call["width"].ceil_div(2)
        call["tiles"] = across * call["height"].ceil_div(2)
        call["total"] = call["tiles"] * call["items"]

    def _unframe(self, code: Code, frame: Record, call: Record) -> None:
        """Distances in memory, in place of those in an array with zeros around it."""
        whole, inner = frame["all1"] * frame["all2"], frame["size1"] * frame["size2"]
        start, pixel = frame["start"], call["pixel"]
        call["x_item"] = call["x_item"] // whole * inner
        place = start // whole * inner + start % pixel
        call["x"] = code.at(call.pointer_at("x"), place, self.fmt.storage)
        call["y_low"] = frame["low1"] - start % whole // frame["all2"]
        call["x_low"] = frame["low2"] // pixel - start % frame["all2"] // pixel
        call["pitch"], call["x_size"] = frame["size2"], frame["size2"] // pixel
        call["y_size"] = frame["size1"]

    def take_zeros(self, code: Code, call: Record, count: Int) -> ir.Value:
        """Memory of so many zeros, at least, for `pixel`."""
        count = count.round_up(self.lanes)
        call["zeros"] = zeros = code.call(self.parts.take, count * self.fmt.acc_bytes)
        with code.range(0, count, self.lanes) as i:
            self.store(code, zero_of(self.vec), code.at(zeros, i, self.acc))
        return zeros
