"""Random programs of all kinds of ops: planned and interpreted, they mean what their ops mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.cumulative import cumsum_p
from funcgrad.ops.elementwise import arithmetic, compare, convert, transcendental
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import GatherDimensionNumbers, gather
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p
from funcgrad.ops.reduce import argmax_p, max_p
from funcgrad.ops.shape import concatenate_p, pad_p, reshape_p, rev_p, slice_p
from funcgrad.ops.sort import sort_p
from tests.backends.checks import check, floats

SHAPES = [(4, 6), (6, 4), (24,), (2, 3, 4), (4,), (6,), (1, 4), (4, 6, 2), ()]


class Writer:
    """Applies random ops to random values made so far."""

    def __init__(self, seed, values):
        self.rng = np.random.default_rng(seed)
        self.values = list(values)

    def pick(self, rank=0):
        fitting = [v for v in self.values if len(v.shape) >= rank]
        # Late values more often, so that programs are deep.
        i = int(len(fitting) * self.rng.random() ** 0.5)
        return fitting[i]

    def axis(self, x):
        return int(self.rng.integers(len(x.shape)))

    def like(self, x):
        """Another value in x's shape: one that has it, or has its last axes, or a scalar."""
        same = [v for v in self.values if v.shape == x.shape]
        last = [v for v in self.values if v.shape and v.shape == x.shape[-len(v.shape) :]]
        first = [v for v in self.values if v.shape and v.shape == x.shape[: len(v.shape)]]
        for choice in self.rng.permutation(3):
            found = (same, last, first)[choice]
            if found:
                y = found[int(self.rng.integers(len(found)))]
                n, m = len(x.shape), len(y.shape)
                dims = tuple(range(n - m, n)) if choice == 1 else tuple(range(m))
                if y.shape == x.shape:
                    return y
                return broadcast_p.bind(y, shape=x.shape, broadcast_dimensions=dims)
        raise AssertionError("x has its own shape")

    def step(self):
        ops = [v for k, v in sorted(vars(Writer).items()) if k.startswith("op_")]
        op = ops[int(self.rng.integers(len(ops)))]
        out = op(self)
        if out is not None:
            self.values.append(out)

    def op_unary(self):
        f = [transcendental.tanh, transcendental.sin, arithmetic.neg, arithmetic.abs,
             arithmetic.square][int(self.rng.integers(5))]  # fmt: skip
        return f(self.pick())

    def op_binary(self):
        f = [add, arithmetic.mul, arithmetic.sub, arithmetic.max][int(self.rng.integers(4))]
        x = self.pick()
        return transcendental.tanh(f(x, self.like(x)))

    def op_scaled(self):
        return arithmetic.mul(self.pick(), np.float32(0.5))

    def op_select(self):
        x = self.pick()
        y = self.like(x)
        return convert.select_n(compare.lt(x, y), y, x)

    def op_reduce(self):
        x = self.pick(1)
        n = int(self.rng.integers(1, len(x.shape) + 1))
        axes = tuple(sorted(int(i) for i in self.rng.permutation(len(x.shape))[:n]))
        return (sum_p, max_p)[int(self.rng.integers(2))].bind(x, axes=axes)

    def op_normalize(self):
        x = self.pick(1)
        axis = self.axis(x)
        total = max_p.bind(arithmetic.abs(x), axes=(axis,))
        kept = tuple(i for i in range(len(x.shape)) if i != axis)
        wide = broadcast_p.bind(total, shape=x.shape, broadcast_dimensions=kept)
        return arithmetic.div(x, add.bind(wide, np.float32(1)))

    def op_position(self):
        x = self.pick(1)
        at = argmax_p.bind(x, axes=(self.axis(x),), index_dtype=np.dtype("int32"))
        return convert.convert_element_type_p.bind(at, new_dtype=np.dtype("float32"))

    def op_transpose(self):
        x = self.pick(2)
        order = tuple(int(i) for i in self.rng.permutation(len(x.shape)))
        return transpose_p.bind(x, permutation=order)

    def op_reshape(self):
        x = self.pick()
        size = int(np.prod(x.shape, dtype=int))
        shapes = [s for s in SHAPES if int(np.prod(s, dtype=int)) == size]
        if shapes:
            return reshape_p.bind(x, new_sizes=shapes[int(self.rng.integers(len(shapes)))])
        return None

    def op_rev(self):
        x = self.pick(1)
        return rev_p.bind(x, dimensions=(self.axis(x),))

    def op_slice_and_pad(self):
        x = self.pick(1)
        axis = self.axis(x)
        n = x.shape[axis]
        low = int(self.rng.integers(n))
        starts = tuple(low if i == axis else 0 for i in range(len(x.shape)))
        part = slice_p.bind(x, start_indices=starts, limit_indices=x.shape, strides=None)
        config = [(0, 0, 0)] * len(x.shape)
        after = int(self.rng.integers(low + 1))
        config[axis] = (low - after, after, 0)
        return pad_p.bind(part, np.float32(self.rng.integers(2)), padding_config=tuple(config))

    def op_concatenate(self):
        x = self.pick(1)
        axis = self.axis(x)
        both = concatenate_p.bind(x, self.like(x), dimension=axis)
        starts = tuple(1 if i == axis else 0 for i in range(len(x.shape)))
        limits = tuple(n + 1 if i == axis else n for i, n in enumerate(x.shape))
        return slice_p.bind(both, start_indices=starts, limit_indices=limits, strides=None)

    def op_dot(self):
        x = self.pick(1)
        axis = self.axis(x)
        others = [(v, i) for v in self.values for i, n in enumerate(v.shape) if n == x.shape[axis]]
        y, i = others[int(self.rng.integers(len(others)))]
        if len(x.shape) + len(y.shape) > 5:
            return None
        numbers = (((axis,), (i,)), ((), ()))
        out = dot_general_p.bind(x, y, dimension_numbers=numbers, preferred_element_type=None)
        return transcendental.tanh(out)

    def op_running(self):
        x = self.pick(1)
        y = cumsum_p.bind(x, axis=self.axis(x), reverse=bool(self.rng.integers(2)))
        return transcendental.tanh(y)

    def op_dynamic(self):
        x = self.pick(1)
        starts = [np.int32(self.rng.integers(-1, n + 1)) for n in x.shape]
        sizes = tuple(int(self.rng.integers(1, n + 1)) for n in x.shape)
        part = dynamic_slice_p.bind(x, *starts, slice_sizes=sizes)
        return dynamic_update_slice_p.bind(self.like(x), part, *starts)

    def op_gather(self):
        x = self.pick(1)
        at = self.rng.integers(0, x.shape[0], (x.shape[0], 1)).astype("int32")
        n = len(x.shape)
        numbers = GatherDimensionNumbers(tuple(range(1, n)), (0,), (0,))
        at = add.bind(at, np.int32(0))
        return gather(x, at, numbers, (1, *x.shape[1:]), mode="clip")

    def op_sort(self):
        if self.rng.random() < 0.7:
            return None
        x = self.pick(1)
        return sort_p.bind(x, dimension=self.axis(x), is_stable=True, num_keys=1)[0]


def run(seed, steps):
    args = [floats(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    rng = np.random.default_rng(seed)

    def fun(*xs):
        writer = Writer(seed, xs)
        for _ in range(steps):
            writer.step()
        made = writer.values[len(xs) :] or writer.values
        chosen = rng.permutation(len(made))[:3]
        return [made[int(i)] for i in chosen] + [made[-1]]

    donated = [bool(b) for b in rng.integers(0, 2, len(args))]
    state = rng.bit_generator.state
    check(fun, *args, donated=donated)
    return state


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_random_programs(seed, steps):
    run(seed, steps)


@pytest.mark.slow
def test_many_random_programs():
    for seed in range(3000):
        run(seed, 1 + seed % 60)
