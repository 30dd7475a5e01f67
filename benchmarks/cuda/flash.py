"""Attention's forward pass on tensor cores, as LLVM text: `mma.sync`, `ldmatrix`, `cp.async`.

Online softmax in base 2 (Milakov and Gimelshein 2018; Dao 2023). A block of warps takes a block of
queries, a warp 16 of them or 32; tiles of keys and values come to shared memory one step ahead.
Rows there are cut into chunks of 16 bytes, and chunk c of row r lies at c ^ (r & 7), so that the 8
rows which `ldmatrix` reads at once lie in different banks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.cuda.streams import CTAID_X, CTAID_Y, NCTAID_X, TID_X, G, special
from funcgrad.backends.llvm.emit.text import Definitions, Function

_FOUR = "{i32, i32, i32, i32}"
_FLOATS = "{float, float, float, float}"
_MMA = "llvm.nvvm.mma.m16n8k16.row.col.bf16"


class Flash(NamedTuple):
    """Head size, warps a block, tiles of 16 queries a warp, keys a step, whether queries stay in
    shared memory rather than in registers, and whether later keys are masked."""

    d: int
    warps: int
    tiles: int
    keys: int
    shared_q: bool
    causal: bool = False

    @property
    def name(self) -> str:
        """The kernel's."""
        where = "shared" if self.shared_q else "registers"
        name = f"flash_{self.d}_{self.warps}_{self.tiles}_{self.keys}_{where}"
        return name + ("_causal" if self.causal else "")

    @property
    def queries(self) -> int:
        """Queries a block."""
        return 16 * self.tiles * self.warps

    @property
    def q_bytes(self) -> int:
        """Bytes of shared memory that queries take."""
        return 2 * self.d * self.queries if self.shared_q else 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory: queries, and two stages of keys and values."""
        return self.q_bytes + 2 * 2 * 2 * self.keys * self.d


class Writer:
    """The kernel under construction."""

    def __init__(self, module: Definitions, flash: Flash) -> None:
        self.f, self.flash = Function(module), flash
        self.chunks = flash.d // 8
        module.needed.setdefault("smem", "@smem = external addrspace(3) global [0 x i8], align 128")
        module.declare(_MMA, _FLOATS, ["i32"] * 6 + ["float"] * 4, "convergent nounwind")
        module.declare("llvm.nvvm.ex2.approx.f", "float", ["float"])
        module.declare("llvm.nvvm.barrier0", "void", [], "convergent nounwind")
        module.declare(
            "llvm.nvvm.shfl.sync.bfly.f32", "float", ["i32", "float", "i32", "i32"],
            "convergent nounwind",
        )  # fmt: skip

    # ---- words

    def op(self, name: str, a: str, b: str | int) -> str:
        """An instruction on i32."""
        return a if (name, b) in (("add", 0), ("mul", 1)) else self.f.let(f"{name} i32 {a}, {b}")

    def asm(self, text: str, constraints: str, args: str, result: str = "void") -> str:
        """Inline assembly that keeps its place."""
        line = f'call {result} asm sideeffect "{text}", "{constraints}"({args})'
        if result == "void":
            self.f.do(line)
            return ""
        return self.f.let(line)

    def matrices(self, address: str, offset: int, turned: bool) -> list[str]:
        """Four 8 × 8 matrices' fragments, of rows whose addresses the lanes give."""
        turn = ".trans" if turned else ""
        text = f"ldmatrix.sync.aligned.m8n8.x4{turn}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
        made = self.asm(text, "=r,=r,=r,=r,r,~{memory}", f"i32 {address}", _FOUR)
        return [self.f.let(f"extractvalue {_FOUR} {made}, {i}") for i in range(4)]

    def mma(self, a: Sequence[str], b: Sequence[str], c: Sequence[str]) -> list[str]:
        """c + a·b of 16 × 16 and 16 × 8."""
        args = ", ".join([*(f"i32 {x}" for x in (*a, *b)), *(f"float {x}" for x in c)])
        made = self.f.let(f"call {_FLOATS} @{_MMA}({args})")
        return [self.f.let(f"extractvalue {_FLOATS} {made}, {i}") for i in range(4)]

    def pack(self, x: str, y: str) -> str:
        """Two floats as bfloat16 in a register."""
        text = "cvt.rn.bf16x2.f32 $0, $1, $2;"
        return self.f.let(f'call i32 asm "{text}", "=r,f,f"(float {y}, float {x})')

    def largest(self, x: str, y: str) -> str:
        """The larger one."""
        return self.f.intrinsic("maxnum", "float", x, y)

    def quad(self, x: str, op: str) -> str:
        """Over the four lanes that hold a row."""
        name = "llvm.nvvm.shfl.sync.bfly.f32"
        for mask in (1, 2):
            y = self.f.let(f"call float @{name}(i32 -1, float {x}, i32 {mask}, i32 31)")
            x = self.largest(x, y) if op == "max" else self.f.let(f"fadd float {x}, {y}")
        return x

    def ex2(self, x: str) -> str:
        """2 to the power x."""
        return self.f.let(f"call float @llvm.nvvm.ex2.approx.f(float {x})")

    # ---- memory

    def chunk(self, base: str, row: str, chunk: str) -> str:
        """The shared address of a chunk of a row; rows 8 further on lie at a fixed distance."""
        swizzled = self.op("xor", chunk, self.op("and", row, 7))
        at = self.op("add", self.op("mul", row, self.chunks), swizzled)
        return self.op("add", base, self.op("shl", at, 4))

    def copy(self, base: str, pointer: str, rows: int) -> None:
        """Start copying rows to shared memory, all threads together."""
        threads = 32 * self.flash.warps
        row = self.op("lshr", self.tid, int(math.log2(self.chunks)))
        to = self.chunk(base, row, self.op("and", self.tid, self.chunks - 1))
        offset = self.f.let(f"zext i32 {self.op('shl', self.tid, 4)} to i64")
        source = self.f.let(f"getelementptr i8, ptr{G} {pointer}, i64 {offset}")
        for k in range(rows * self.chunks // threads):
            step = 16 * k * threads
            self.asm(f"cp.async.cg.shared.global [$0+{step}], [$1+{step}], 16;", "r,l,~{memory}",
                     f"i32 {to}, ptr{G} {source}")  # fmt: skip

    def load_tile(self, stage: str, tile: str) -> None:
        """Start copying keys and values of a tile into a stage, as one group."""
        size = 2 * self.flash.keys * self.flash.d
        base = self.op("add", self.kv, self.op("mul", stage, 2 * size))
        offset = self.f.let(f"zext i32 {self.op('mul', tile, size)} to i64")
        for name, place in (("%k", base), ("%v", self.op("add", base, size))):
            head = self.f.let(f"getelementptr i8, ptr{G} {name}, i64 {self.head}")
            self.copy(place, self.f.let(f"getelementptr i8, ptr{G} {head}, i64 {offset}"),
                      self.flash.keys)  # fmt: skip
        self.asm("cp.async.commit_group;", "~{memory}", "")

    # ---- the kernel

    def text(self) -> str:
        """`name(q, k, v, o, keys)`: the grid is blocks of queries × heads; q is scaled inside."""
        self.begin()
        self.load_tile("0", "0")
        q = self.queries()
        f, flash = self.f, self.flash
        states = self.states()
        f.do("br label %tile")
        entry = f.block
        f.start("tile")
        phis = len(f.lines)
        self.asm("cp.async.wait_group 0;", "~{memory}", "")
        f.do("call void @llvm.nvvm.barrier0()")
        following = self.op("add", "%j", 1)
        more = f.let(f"icmp ult i32 {following}, %tiles")
        f.do(f"br i1 {more}, label %fetch, label %compute")
        f.start("fetch")
        self.load_tile(self.op("and", following, 1), following)
        f.do("br label %compute")
        f.start("compute")
        after = self.step(q)
        f.do(f"br i1 {more}, label %tile, label %end")
        back = f.block
        lines = [f"  %j = phi i32 [0, %{entry}], [{following}, %{back}]"]
        lines += [
            f"  %{name} = phi float [{first}, %{entry}], [{after[name]}, %{back}]"
            for name, first in states.items()
        ]
        f.lines[phis:phis] = lines
        f.start("end")
        self.store(after)
        f.do("ret void")
        params = ", ".join(f"ptr{G} noalias %{n}" for n in "qkvo")
        return f.text(f"define ptx_kernel void @{flash.name}({params}, i32 %keys) nounwind")

    def step(self, q: list) -> dict[str, str]:
        """The turn of tile %j: of two texts if causal, as few tiles have keys that are masked."""
        f, flash = self.f, self.flash
        size = 2 * flash.keys * flash.d
        base = self.op("add", self.kv, self.op("mul", self.op("and", "%j", 1), 2 * size))
        values = self.op("add", base, size)
        if not flash.causal:
            return self.turn(q, base, values)
        start = self.op("mul", "%j", flash.keys)
        ends = self.op("add", start, flash.keys - 1)
        f.do(f"br i1 {f.let(f'icmp ugt i32 {ends}, {self.first}')}, label %masked, label %plain")
        turns = []
        for label in ("masked", "plain"):
            f.start(label)
            turns.append(self.turn(q, base, values, start if label == "masked" else ""))
            f.do("br label %join")
        f.start("join")
        return {
            name: f.let(f"phi float [{x}, %masked], [{turns[1][name]}, %plain]")
            for name, x in turns[0].items()
        }

    def begin(self) -> None:
        """Where this thread is."""
        f, flash = self.f, self.flash
        self.tid = special(f, TID_X)
        self.lane = self.op("and", self.tid, 31)
        warp = self.op("lshr", self.tid, 5)
        self.row0 = self.op("mul", warp, 16 * flash.tiles)
        f.do("%smem64 = ptrtoint ptr addrspace(3) @smem to i64")
        self.q = f.let("trunc i64 %smem64 to i32")
        self.kv = self.op("add", self.q, flash.q_bytes)
        head = f.let(f"zext i32 {self.op('mul', special(f, CTAID_Y), '%keys')} to i64")
        self.head = f.let(f"mul i64 {head}, {2 * flash.d}")
        block = special(f, CTAID_X)
        if flash.causal:  # the longest first
            block = self.op("sub", self.op("sub", special(f, NCTAID_X), 1), block)
        self.first = self.op("mul", block, flash.queries)
        offset = f.let(f"zext i32 {self.op('mul', self.first, 2 * flash.d)} to i64")
        self.block = f.let(f"add i64 {self.head}, {offset}")
        ends = "%keys"
        if flash.causal:
            ends = self.op("add", self.first, flash.queries + flash.keys - 1)
        f.do(f"%tiles = udiv i32 {ends}, {flash.keys}")

    def queries(self) -> list[list[list[str]]]:
        """Fragments of the queries by tile and 16 features; empty if they stay in shared memory."""
        f, flash = self.f, self.flash
        pointer = f.let(f"getelementptr i8, ptr{G} %q, i64 {self.block}")
        if flash.shared_q:
            self.copy(self.q, pointer, flash.queries)
            self.asm("cp.async.commit_group;", "~{memory}", "")
            return []
        row, pair = self.op("lshr", self.lane, 2), self.op("shl", self.op("and", self.lane, 3), 1)
        made = []
        for tile in range(flash.tiles):
            line = self.op("add", self.op("add", self.row0, 16 * tile), row)
            start = self.op("add", self.op("mul", line, flash.d), pair)
            steps = []
            for k in range(flash.d // 16):
                parts = []
                for offset in (0, 8 * flash.d, 8, 8 * flash.d + 8):
                    at = self.op("add", start, 16 * k + offset)
                    to = f.let(f"getelementptr bfloat, ptr{G} {pointer}, i32 {at}")
                    parts.append(f.let(f"load i32, ptr{G} {to}, align 4"))
                steps.append(parts)
            made.append(steps)
        return made

    def states(self) -> dict[str, str]:
        """What a turn takes and gives, with what it is first: maxima, sums, results."""
        flash, found = self.flash, {}
        for t in range(flash.tiles):
            found |= {f"m{t}_{h}": "0xFFF0000000000000" for h in (0, 1)}
            found |= {f"l{t}_{h}": "0.0" for h in (0, 1)}
            found |= {f"o{t}_{n}_{i}": "0.0" for n in range(flash.d // 8) for i in range(4)}
        return found

    def turn(self, q: list, keys: str, values: str, start: str = "") -> dict[str, str]:
        """One tile of keys and values; masked if `start`, its first key's number, is given."""
        flash, after = self.flash, {}
        logits = self.logits(q, keys)
        if start:
            self.mask(logits, start)
        weights = []
        for t in range(flash.tiles):
            p, scales = self.softmax(t, logits[t], after)
            weights.append(p)
            for n in range(flash.d // 8):
                for i in range(4):
                    name = f"o{t}_{n}_{i}"
                    after[name] = self.f.let(f"fmul float %{name}, {scales[i // 2]}")
        self.results(weights, values, after)
        return after

    def logits(self, q: list, keys: str) -> list[list[list[str]]]:
        """Products of queries and keys, by tile of queries and 8 keys."""
        flash = self.flash
        made = [[["0.0"] * 4 for _ in range(flash.keys // 8)] for _ in range(flash.tiles)]
        low, high = self.op("and", self.lane, 7), self.op("lshr", self.lane, 3)
        for k in range(0, flash.d // 16, 2):
            a = [[self.query(q, t, k + s) for s in (0, 1)] for t in range(flash.tiles)]
            chunk = self.op("add", high, 2 * k)
            address = self.chunk(keys, low, chunk)
            for n in range(flash.keys // 8):
                b = self.matrices(address, 16 * flash.d * n, False)
                for t in range(flash.tiles):
                    for s in (0, 1):
                        made[t][n] = self.mma(a[t][s], b[2 * s : 2 * s + 2], made[t][n])
        return made

    def mask(self, logits: list[list[list[str]]], start: str) -> None:
        """Make logits of keys after their queries minus infinity."""
        f = self.f
        row, pair = self.op("lshr", self.lane, 2), self.op("shl", self.op("and", self.lane, 3), 1)
        query = self.op("add", self.op("add", self.first, self.row0), row)
        ahead = self.op("sub", self.op("sub", query, start), pair)
        for t, tile in enumerate(logits):
            limits = [self.op("add", ahead, 16 * t + 8 * h) for h in (0, 1)]
            for n, part in enumerate(tile):
                for i, x in enumerate(part):
                    later = f.let(f"icmp slt i32 {limits[i // 2]}, {8 * n + i % 2}")
                    part[i] = f.let(f"select i1 {later}, float 0xFFF0000000000000, float {x}")

    def query(self, q: list, tile: int, step: int) -> list[str]:
        """A fragment of the queries."""
        if q:
            return q[tile][step]
        row = self.op("add", self.row0, self.op("and", self.lane, 15))
        chunk = self.op("add", self.op("lshr", self.lane, 4), 2 * step)
        return self.matrices(self.chunk(self.q, row, chunk), 32 * self.flash.d * tile, False)

    def softmax(
        self, tile: int, logits: list[list[str]], after: dict[str, str]
    ) -> tuple[list[list[str]], list[str]]:
        """Weights of a tile of queries, and by what earlier results shrink."""
        f = self.f
        factor = np.float64(np.float32(math.log2(math.e) / math.sqrt(self.flash.d)))
        scale = f"0x{factor.view(np.uint64):016X}"
        shrinks, negated = [], []
        for h in (0, 1):
            top = None
            for s in logits:
                for x in s[2 * h : 2 * h + 2]:
                    top = x if top is None else self.largest(top, x)
            assert top is not None
            new = self.largest(f"%m{tile}_{h}", self.quad(top, "max"))
            after[f"m{tile}_{h}"] = new
            minus = f.let(f"fneg float {f.let(f'fmul float {new}, {scale}')}")
            negated.append(minus)
            shrinks.append(self.ex2(f.intrinsic("fma", "float", f"%m{tile}_{h}", scale, minus)))
        weights = [
            [
                self.ex2(f.intrinsic("fma", "float", x, scale, negated[i // 2]))
                for i, x in enumerate(s)
            ]
            for s in logits
        ]
        for h in (0, 1):
            total = f.let(f"fmul float %l{tile}_{h}, {shrinks[h]}")
            for p in weights:
                for x in p[2 * h : 2 * h + 2]:
                    total = f.let(f"fadd float {total}, {x}")
            after[f"l{tile}_{h}"] = total
        return weights, shrinks

    def results(self, weights: list[list[list[str]]], values: str, after: dict[str, str]) -> None:
        """Add products of weights and values to the results."""
        flash = self.flash
        line, high = self.op("and", self.lane, 15), self.op("lshr", self.lane, 4)
        columns = range(0, flash.d // 8, 2)
        addresses = [self.chunk(values, line, self.op("add", high, n)) for n in columns]
        for k in range(flash.keys // 16):
            a = [
                [self.pack(p[i], p[i + 1]) for p in weights[t][2 * k : 2 * k + 2] for i in (0, 2)]
                for t in range(flash.tiles)
            ]
            for n, address in zip(columns, addresses, strict=True):
                b = self.matrices(address, 32 * flash.d * k, True)
                for t in range(flash.tiles):
                    for s in (0, 1):
                        names = [f"o{t}_{n + s}_{i}" for i in range(4)]
                        made = self.mma(a[t], b[2 * s : 2 * s + 2], [after[x] for x in names])
                        after.update(zip(names, made, strict=True))

    def store(self, after: dict[str, str]) -> None:
        """Results divided by their sums, as bfloat16."""
        f, flash = self.f, self.flash
        pointer = f.let(f"getelementptr i8, ptr{G} %o, i64 {self.block}")
        row, pair = self.op("lshr", self.lane, 2), self.op("shl", self.op("and", self.lane, 3), 1)
        for t in range(flash.tiles):
            line = self.op("add", self.op("add", self.row0, 16 * t), row)
            start = self.op("add", self.op("mul", line, flash.d), pair)
            for h in (0, 1):
                inverse = f.let(f"fdiv float 1.0, {self.quad(after[f'l{t}_{h}'], 'add')}")
                for n in range(flash.d // 8):
                    parts = [
                        f.let(f"fmul float {after[f'o{t}_{n}_{2 * h + i}']}, {inverse}")
                        for i in (0, 1)
                    ]
                    at = self.op("add", start, 8 * n + 8 * h * flash.d)
                    to = f.let(f"getelementptr bfloat, ptr{G} {pointer}, i32 {at}")
                    f.do(f"store i32 {self.pack(*parts)}, ptr{G} {to}, align 4")
