"""Biases and masks in the generated attention: tiles of them are read where they lie.

A tile of logits has rows of `cols` lanes; which of query and key is the lane is the direction's.
"""

from __future__ import annotations

import math

from funcgrad.backends.llvm.attention.parts import CALL, PAIR_AXES, Attention
from funcgrad.backends.llvm.gemm.pack import F64, FORMATS, pack_function
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record

# Where a tile lies: batch, head, query, key, rows, lanes.
PLACE = [I64] * 6
CHUNK = 1 << 16


class Pairs:
    """Writes the functions; lane: "query" or "key"."""

    def __init__(self, parts: Attention, lane: str):
        self.parts, self.lane = parts, lane
        self.row = "key" if lane == "query" else "query"
        self.mask_vec = ir.VectorType(I32, parts.lanes)
        self.pack_mask, self.pack_bias = (self._packer(x) for x in ("mask", "bias"))
        self.seen, self.logits = self._seen(), self._logits()

    def _packer(self, name: str) -> ir.Function:
        parts = self.parts
        wide = "float64" if parts.acc == F64 else "float32"
        fmt = FORMATS["int8" if name == "mask" else wide]
        tile = parts.tile
        function = pack_function(parts.module, f"pack_{name}", tile.cols, tile, fmt, parts.target)
        function.attributes.add("noinline")
        return function

    def room(self, code: Code, rows: int) -> Int:
        """Elements of memory for a tile."""
        return self.parts.panel(self.parts.cols, code.i64(rows))

    def _first(self, code: Code, call: Record, name: str, place: list, kind: ir.Type) -> ir.Value:
        """The address of a tile's first element."""
        offset = code.i64(0)
        for axis, i in zip(PAIR_AXES, place, strict=False):
            offset = offset + call[f"{name}_{axis}"] * i
        return code.at(call.pointer_at(name), offset, kind)

    def _read(self, code: Code, call: Record, name: str, place: list, to: ir.Value) -> None:
        kind = ir.IntType(8) if name == "mask" else self.parts.acc
        pack = self.pack_mask if name == "mask" else self.pack_bias
        *_, rows, lanes = place
        code.call(pack, to, self._first(code, call, name, place, kind), lanes, rows,
                  call[f"{name}_{self.lane}"], call[f"{name}_{self.row}"], 0)  # fmt: skip

    def _seen(self) -> ir.Function:
        """i64(call, mask, *PLACE): whether a query sees a key; reads the mask's tile."""
        code = Code(self.parts.module, "seen", [PTR, PTR, *PLACE], result=I64)
        pointer, to, *place = code.args
        call, vec, parts = Record(code, CALL, pointer), self.mask_vec, self.parts
        found = code.variable(I64, I64(1))
        with code.when(call["mask"].ne(0)):
            self._read(code, call, "mask", place, to)
            some = code.variable(vec, ir.Constant(vec, None))
            with code.range(0, place[4] * parts.cols, parts.lanes) as i:
                x = code.load(code.at(to, i, I32), vec, 4)
                some.set(code.b.or_(some.get(), code.b.and_(x, ir.Constant(vec, [1] * vec.count))))
            found.set(code.b.zext(code.lane_sum(some.get()), I64))
        code.ret(found.get())
        return code.function

    def _logits(self) -> ir.Function:
        """void(call, scores, bias, mask, *PLACE): scores become logits, -inf what the mask hides.
        The mask's tile has been read."""
        code = Code(self.parts.module, "logits", [PTR, PTR, PTR, PTR, *PLACE])
        pointer, scores, bias, mask, *place = code.args
        call, parts, b = Record(code, CALL, pointer), self.parts, code.b
        size, scale = place[4] * parts.cols, parts.scale(code, call)
        with code.either(call["bias"].ne(0)) as (yes, no):
            with yes:
                self._read(code, call, "bias", place, bias)
                with code.range(0, size, parts.lanes) as i:
                    x, y = parts.load(code, scores, i), parts.load(code, bias, i)
                    parts.store(code, parts.fma(code, x, scale, y), scores, i)
            with no, code.range(0, size, parts.lanes) as i:
                parts.store(code, b.fmul(parts.load(code, scores, i), scale), scores, i)
        with code.when(call["mask"].ne(0)), code.range(0, size, parts.lanes) as i:
            there = code.load(code.at(mask, i, I32), self.mask_vec, 4)
            there = b.icmp_signed("!=", there, ir.Constant(self.mask_vec, None))
            x = b.select(there, parts.load(code, scores, i), parts.value(-math.inf))
            parts.store(code, x, scores, i)
        code.ret()
        return code.function

    # ---- the bias's cotangents

    def clear(self) -> ir.Function:
        """The task whose items are chunks of zeros."""
        parts = self.parts
        code, call = parts.task("clear_task")
        to, size = call.pointer_at("dbias"), call["dbias_size"]
        with parts.items(code) as (chunk, _):
            start = chunk * CHUNK
            with code.range(start, (start + CHUNK).min(size)) as i:
                code.store(ir.Constant(parts.acc, 0.0), code.at(to, i, parts.acc))
        code.ret()
        return code.function

    def add(self) -> ir.Function:
        """void(call, ds, *PLACE): adds a tile of logits' cotangents, keys as lanes."""
        code = Code(self.parts.module, "add_dbias", [PTR, PTR, *PLACE])
        pointer, ds, *place = code.args
        call, parts = Record(code, CALL, pointer), self.parts
        *_, rows, lanes = place
        first = self._first(code, call, "dbias", place, parts.acc)
        down, along = call["dbias_query"], call["dbias_key"]
        whole = lanes.eq(parts.cols) & along.eq(1)
        with code.range(0, rows) as i:
            row, to = code.at(ds, i * parts.cols, parts.acc), code.at(first, i * down, parts.acc)
            with code.either(whole) as (yes, no):
                with yes:
                    for v in range(parts.tile.vectors):
                        at = v * parts.lanes
                        x, y = parts.load(code, to, at), parts.load(code, row, at)
                        parts.store(code, code.b.fadd(x, y), to, at)
                with no, code.range(0, lanes) as j:
                    place_j = code.at(to, j * along, parts.acc)
                    x = code.load(place_j, parts.acc)
                    y = code.load(code.at(row, j, parts.acc), parts.acc)
                    code.store(code.b.fadd(x, y), place_j)
        code.ret()
        return code.function
