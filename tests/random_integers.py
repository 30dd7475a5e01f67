"""Steps of random programs of integers: results are exact, so ties and jumps are welcome."""

import numpy as np

from funcgrad.ops import reduce as r
from funcgrad.ops.base import sum_p
from funcgrad.ops.contract import dot_general
from funcgrad.ops.convolution.pooling import reduce_window
from funcgrad.ops.cumulative import cummax, cummin, cumprod, cumsum
from funcgrad.ops.elementwise import arithmetic as a
from funcgrad.ops.elementwise import compare as c
from funcgrad.ops.elementwise import convert as v
from funcgrad.ops.families import add
from funcgrad.ops.indexing.scatter import scatter_max, scatter_min
from funcgrad.ops.indexing.windows import ScatterDimensionNumbers
from funcgrad.ops.sort import sort, sort_key_val, top_k
from tests.random_steps import Moving, alike, dtype_of, shape_of

WIDTHS = ("int32", "int64", "int8", "uint8", "int16", "uint32")
UNARY = {
    "neg": a.neg, "not": c.bitwise_not, "abs": a.abs, "sign": a.sign, "square": a.square,
    "count": c.population_count, "clz": c.clz,
}  # fmt: skip
BINARY = {
    "add": add, "sub": a.sub, "mul": a.mul, "div": a.div, "rem": a.rem, "max": a.max, "min": a.min,
    "and": c.bitwise_and, "or": c.bitwise_or, "xor": c.bitwise_xor, "shl": c.shift_left,
    "shr": c.shift_right_logical, "sar": c.shift_right_arithmetic,
}  # fmt: skip
TESTS = {"lt": c.lt, "le": c.le, "eq": c.eq, "ne": c.ne}
REDUCTIONS = {
    "sum": lambda x, axes: sum_p.bind(x, axes=axes), "max": r.reduce_max, "min": r.reduce_min,
    "prod": r.reduce_prod, "and": r.reduce_and, "or": r.reduce_or, "xor": r.reduce_xor,
}  # fmt: skip
RUNNING = {"cumsum": cumsum, "cumprod": cumprod, "cummax": cummax, "cummin": cummin}


class Integers(Moving):
    """Steps on integers of several widths."""

    def constant(self, shape, dtype):
        rng = np.random.default_rng(self.integer(0, 99))
        return rng.integers(-20, 21, shape).astype(dtype)

    def one(self, rank=0):
        """An operand's number, and an axis of it."""
        i = self.pick(rank)
        return None if i is None else (i, self.axis(self.values[i]) if rank else 0)

    def op_unary(self):
        name = self.choice(UNARY)
        return name, UNARY[name], [self.pick()]

    def op_binary(self):
        i, j, name = self.pick(), self.pick(), self.choice(BINARY)
        f = BINARY[name]
        return name, lambda x, y: f(x, alike(y, x)), [i, j]

    def op_with_constant(self):
        i, name = self.pick(), self.choice(BINARY)
        x, f = self.values[i], BINARY[name]
        k = self.constant(self.choice([x.shape, ()]), x.dtype)
        return f"{name} constant", lambda x: f(x, k), [i]

    def op_choose(self):
        i, j, k, name = self.pick(), self.pick(), self.pick(), self.choice(TESTS)
        test = TESTS[name]
        run = lambda x, y, z: v.select(test(x, alike(y, x)), x, alike(z, x))
        return f"choose by {name}", run, [i, j, k]

    def op_convert(self):
        i, dtype = self.pick(), self.choice(WIDTHS)
        return f"to {dtype}", lambda x: v.convert_element_type(x, dtype), [i]

    def op_through_bool(self):
        i = self.pick()

        def run(x):
            flags = c.bitwise_xor(c.lt(x, np.asarray(3, dtype_of(x))), np.asarray(True))
            return v.convert_element_type(flags, dtype_of(x))

        return "through bool", run, [i]

    def op_reduce(self):
        if (found := self.one(1)) is None:
            return None
        name = self.choice(REDUCTIONS)
        i, d = found
        return f"{name}{d}", lambda x: REDUCTIONS[name](x, axes=(d,)), [i]

    def op_position(self):
        if (found := self.one(1)) is None:
            return None
        i, d = found
        find = self.choice([r.argmax, r.argmin])
        return f"position{d}", lambda x: find(x, d, np.int32), [i]

    def op_running(self):
        if (found := self.one(1)) is None:
            return None
        i, d = found
        name, reverse = self.choice(RUNNING), bool(self.integer(0, 1))
        return f"{name}{d}", lambda x: RUNNING[name](x, d, reverse), [i]

    def op_dot(self):
        if (found := self.one(1)) is None:
            return None
        i, d = found
        run = lambda x, y: dot_general(x, alike(y, x), (((d,), (d,)), ((), ())))
        return f"dot{d}", run, [i, self.pick()]

    def op_sort(self):
        if (found := self.one(1)) is None:
            return None
        i, d = found
        name = self.choice(["sort", "sort_key_val", "top_k"])
        f = {"sort": lambda x, y: sort(x, d),
             "sort_key_val": lambda x, y: sort_key_val(x, alike(y, x), d)[1],
             "top_k": lambda x, y: top_k(x, 1 + shape_of(x)[-1] // 2)[1]}[name]  # fmt: skip
        return f"{name}{d}", f, [i, self.pick()]

    def op_window(self):
        if (found := self.one(1)) is None:
            return None
        i, d = found
        rank = len(self.values[i].shape)
        window = tuple(2 if k == d else 1 for k in range(rank))
        pads = tuple((0, 1) if k == d else (0, 0) for k in range(rank))
        run = lambda x: reduce_window(x, 0, add, window, (1,) * rank, pads)
        return f"window{d}", run, [i]

    def op_scatter_extremum(self):
        i = self.pick(1)
        if i is None:
            return None
        x, j = self.values[i], self.pick()
        at = np.random.default_rng(self.integer(0, 99)).integers(0, x.shape[0], (x.shape[0], 1))
        numbers = ScatterDimensionNumbers(tuple(range(1, len(x.shape))), (0,), (0,))
        f = self.choice([scatter_max, scatter_min])
        return "scatter extremum", lambda x, y: f(x, at, alike(y, x), numbers), [i, j]
