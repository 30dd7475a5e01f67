"""Steps of random programs: ops on floats, drawn one by one.

Values stay bounded, so that rounding does. Where an op is not continuous (a maximum, a sort, an
index), its operands are salted: constants that differ in all elements are added, so that no two
values tie but for rounding. Such steps are named op_jump_…
"""

import math

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.contract import dot_general
from funcgrad.ops.convolution.conv import conv_general_dilated
from funcgrad.ops.convolution.pooling import reduce_window
from funcgrad.ops.cumulative import cumlogsumexp, cummax, cumprod, cumsum
from funcgrad.ops.elementwise import arithmetic as a
from funcgrad.ops.elementwise import convert as v
from funcgrad.ops.elementwise import special, transcendental
from funcgrad.ops.elementwise.compare import bitwise_and, lt
from funcgrad.ops.elementwise.rounding import floor
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import GatherDimensionNumbers, gather
from funcgrad.ops.indexing.scatter import scatter, scatter_add, scatter_max, scatter_mul
from funcgrad.ops.indexing.windows import ScatterDimensionNumbers
from funcgrad.ops.indexing.windows_at import dynamic_slice, dynamic_update_slice
from funcgrad.ops.linalg.matrices import eye_like, matmul, swapped
from funcgrad.ops.linalg.triangular import cholesky
from funcgrad.ops.reduce import argmax, max_p, min_p, prod_p
from funcgrad.ops.shape import concatenate, pad, reshape, rev, slice
from funcgrad.ops.sort import sort, sort_key_val, top_k

MOST = 150  # elements of a value
UNARY = {
    "sin": transcendental.sin, "cos": transcendental.cos, "tanh": transcendental.tanh,
    "logistic": transcendental.logistic, "erf": special.erf, "neg": a.neg,
    "square": lambda x: a.square(transcendental.tanh(x)),
    "exp": lambda x: transcendental.exp(transcendental.sin(x)),
    "log": lambda x: transcendental.log(add(a.square(x), 1.5)),
    "sqrt": lambda x: a.sqrt(add(a.square(x), 0.5)),
    "cube": lambda x: a.integer_pow(transcendental.tanh(x), 3),
    "pow": lambda x: transcendental.pow(add(a.square(x), 0.7), 0.3),
}  # fmt: skip
BINARY = {
    "add": add, "sub": a.sub,
    "mul": lambda x, y: a.mul(transcendental.tanh(x), y),
    "div": lambda x, y: a.div(x, add(a.square(y), 1.0)),
    "atan2": lambda x, y: transcendental.atan2(x, add(a.square(y), 0.5)),
}  # fmt: skip


def shape_of(x):
    return aval_of(x).shape


def dtype_of(x):
    return aval_of(x).dtype


def scaled(x, by):
    return a.mul(x, np.asarray(by, dtype_of(x)))


def is_integer(x):
    return dtypes.is_integer(dtype_of(x))


def mean_of(x):
    """The mean of floats, the sum of integers."""
    shape = shape_of(x)
    total = sum_p.bind(x, axes=tuple(range(len(shape))))
    return total if is_integer(x) else scaled(total, 1 / max(math.prod(shape), 1))


def fitted(x, shape, dtype=None):
    """x in another shape (spread from its mean where it has not the shape) and dtype."""
    x = x if dtype is None else v.convert_element_type(x, dtype)
    if shape_of(x) == shape:
        return x
    return broadcast_p.bind(mean_of(x), shape=shape, broadcast_dimensions=())


def alike(x, other):
    return fitted(x, shape_of(other), dtype_of(other))


def settled(x):
    """A carry that doesn't grow."""
    return x if is_integer(x) else transcendental.tanh(x)


def is_low(x):
    return lt(mean_of(x), np.asarray(1 if is_integer(x) else 0.1357, dtype_of(x)))


def whole(x, n):
    """An integer from -1 to n that depends on x."""
    if is_integer(x):
        wide = v.convert_element_type(mean_of(x), "int32")
        return a.sub(a.rem(a.abs(wide), np.int32(n + 2)), np.int32(1))
    turned = a.mul(transcendental.sin(add(scaled(mean_of(x), 7.3), 0.4321)), (n + 2) / 2)
    return v.convert_element_type(floor(add(turned, n / 2)), "int32")


class Moving:
    """Draws steps, (name, function, numbers of operands), on values known by example: here those
    that move elements of any dtype."""

    def __init__(self, choose, examples, smooth, depth=0):
        self.choose = choose
        self.values = [Array(np.asarray(x)) for x in examples]
        self.n_in = len(examples)
        self.steps = []
        self.smooth = smooth
        self.depth = depth

    # ---- choices

    def integer(self, low, high):
        return self.choose.integer(low, high)

    def choice(self, options):
        return self.choose.one_of(options)

    def pick(self, rank=0, most=3):
        """The number of a value of at least some rank: late ones come first."""
        fitting = [i for i, x in enumerate(self.values) if rank <= len(x.shape) <= most][::-1]
        if not fitting:
            return None
        # Half of the time one of the last values, so that programs are deep.
        return self.choice(fitting[:2] if self.integer(0, 1) else fitting)

    def axis(self, x):
        return self.integer(0, len(x.shape) - 1)

    def constant(self, shape, dtype):
        rng = np.random.default_rng(self.integer(0, 99))
        return rng.uniform(-1, 1, shape).astype(dtype)

    def salted(self, x):
        """A function that adds a constant whose elements all differ."""
        salt = self.constant(x.shape, x.dtype)
        return lambda y: add(y, salt)

    def op_transpose(self):
        i = self.pick(2)
        if i is None:
            return None
        order = self.choose.order(len(self.values[i].shape))
        return f"transpose{order}", lambda x: transpose_p.bind(x, permutation=order), [i]

    def op_reshape(self):
        i = self.pick()
        n = math.prod(self.values[i].shape)
        cut = self.choice([k for k in range(1, n + 1) if n % k == 0])
        shape = self.choice([(n,), (cut, n // cut), (1, n), (cut, 1, n // cut)])
        return f"reshape{shape}", lambda x: reshape(x, shape), [i]

    def op_broadcast(self):
        i = self.pick(0, 2)
        if i is None:
            return None
        shape = list(self.values[i].shape)
        at = self.integer(0, len(shape))
        shape.insert(at, self.integer(1, 3))
        dims = tuple(d for d in range(len(shape)) if d != at)
        run = lambda x: broadcast_p.bind(x, shape=tuple(shape), broadcast_dimensions=dims)
        return f"broadcast{shape}", run, [i]

    def op_rev(self):
        i = self.pick(1)
        if i is None:
            return None
        d = self.axis(self.values[i])
        return f"rev{d}", lambda x: rev(x, (d,)), [i]

    def op_slice(self):
        i = self.pick(1)
        if i is None:
            return None
        bounds = []
        for n in self.values[i].shape:
            start = self.integer(0, n - 1)
            bounds.append((start, self.integer(start + 1, n), self.integer(1, 2)))
        starts, limits, strides = zip(*bounds, strict=True)
        return f"slice{bounds}", lambda x: slice(x, starts, limits, strides), [i]

    def op_pad(self):
        i = self.pick(1)
        if i is None:
            return None
        low, high, inner = self.integer(-1, 2), self.integer(0, 2), self.integer(0, 1)
        x, d = self.values[i], self.axis(self.values[i])
        low = max(low, 1 - x.shape[d])
        config = [(low, high, inner) if k == d else (0, 0, 0) for k in range(len(x.shape))]
        return f"pad{config}", lambda x: pad(x, np.asarray(0.3, dtype_of(x)), config), [i]

    def op_concatenate(self):
        i, j = self.pick(1), self.pick()
        if i is None:
            return None
        d = self.axis(self.values[i])
        run = lambda x, y: concatenate([x, alike(y, x), x], d)
        return f"concatenate{d}", run, [i, j]

    def op_select(self):
        i, j = self.pick(), self.pick()
        x = self.values[i]
        mask = self.constant(x.shape, x.dtype) < 0.2
        return "select", lambda x, y: v.select(mask, x, alike(y, x)), [i, j]

    # ---- positions

    def op_gather(self):
        i = self.pick(1)
        if i is None:
            return None
        shape = self.values[i].shape
        rng = np.random.default_rng(self.integer(0, 99))
        at = rng.integers(-1, shape[0] + 1, (self.integer(1, 4), 1)).astype(np.int32)
        numbers = GatherDimensionNumbers(tuple(range(1, len(shape))), (0,), (0,))
        mode = self.choice(["clip", "fill"])
        run = lambda x: gather(x, at, numbers, (1, *shape_of(x)[1:]), mode=mode, fill_value=0.0)
        return f"gather {at.ravel()}", run, [i]

    def op_scatter(self):
        i, j = self.pick(1), self.pick()
        if i is None:
            return None
        shape, name = self.values[i].shape, self.choice(["scatter", "scatter_add", "scatter_mul"])
        rng = np.random.default_rng(self.integer(0, 99))
        unique = name == "scatter_mul"
        n = min(self.integer(1, 4), shape[0] if unique else 4)
        rows = rng.permutation(shape[0])[:n] if unique else rng.integers(-1, shape[0] + 1, n)
        at = rows.reshape(-1, 1).astype(np.int32)
        numbers = ScatterDimensionNumbers(tuple(range(1, len(shape))), (0,), (0,))
        f = {"scatter": scatter, "scatter_add": scatter_add, "scatter_mul": scatter_mul}[name]

        def run(x, y):
            updates = fitted(y, (len(at), *shape_of(x)[1:]), dtype_of(x))
            return f(x, at, updates, numbers, unique_indices=unique)

        return f"{name} {rows}", run, [i, j]

    def op_jump_dynamic(self):
        i, j, k = self.pick(1), self.pick(), self.pick()
        if i is None:
            return None
        shape = self.values[i].shape
        sizes = tuple(self.integer(1, n) for n in shape)
        update = bool(self.integer(0, 1))

        def run(x, y, z):
            starts = [whole(y, n) for n in shape]
            if update:
                return dynamic_update_slice(x, fitted(z, sizes, dtype_of(x)), starts)
            return dynamic_slice(x, starts, sizes)

        return f"dynamic{sizes}", run, [i, j, k]


class Steps(Moving):
    """Steps on floats."""

    # ---- elementwise

    def op_unary(self):
        name = self.choice(UNARY)
        return name, UNARY[name], [self.pick()]

    def op_binary(self):
        i, j, name = self.pick(), self.pick(), self.choice(BINARY)
        shapes = self.values[i].shape, self.values[j].shape
        f = BINARY[name]
        if shapes[0] == shapes[1] or () in shapes:
            return name, f, [i, j]
        return f"{name}, fitted", lambda x, y: f(x, alike(y, x)), [i, j]

    def op_with_constant(self):
        i, name = self.pick(), self.choice(BINARY)
        x, f = self.values[i], BINARY[name]
        shape = self.choice([x.shape, ()])
        c = self.constant(shape, x.dtype)
        return f"{name} constant", lambda x: f(x, c), [i]

    def op_jump_choose(self):
        i = self.pick()
        salt = self.salted(self.values[i])

        def run(x):
            y = salt(x)
            low = bitwise_and(lt(y, 0.41), lt(-0.73, y))
            return v.select(low, transcendental.sin(x), scaled(x, 0.5))

        return "choose", run, [i]

    def op_jump_extremum(self):
        i, name = self.pick(), self.choice(["max", "min", "abs", "clamp"])
        salt = self.salted(self.values[i])
        c = self.constant(self.values[i].shape, self.values[i].dtype)
        f = {
            "max": lambda x: a.max(salt(x), c),
            "min": lambda x: a.min(salt(x), c),
            "abs": lambda x: a.abs(salt(x)),
            "clamp": lambda x: v.clamp(-0.613, salt(x), 0.427),
        }
        return name, f[name], [i]  # fmt: skip

    # ---- reductions, cumulative ops, contractions

    def op_reduce(self):
        i = self.pick(1)
        if i is None:
            return None
        rank = len(self.values[i].shape)
        axes = tuple(d for d in range(rank) if self.integer(0, 1)) or (self.integer(0, rank - 1),)
        name = self.choice(["sum", "prod"])
        if name == "prod":
            return f"prod{axes}", lambda x: prod_p.bind(transcendental.cos(x), axes=axes), [i]
        return f"sum{axes}", lambda x: scaled(sum_p.bind(x, axes=axes), 0.5), [i]

    def op_normalize(self):
        """A softmax or a norm: what reads its operand twice."""
        i = self.pick(1)
        if i is None:
            return None
        d = self.axis(self.values[i])

        def run(x):
            e = transcendental.exp(transcendental.sin(x))
            kept = tuple(k for k in range(len(shape_of(x))) if k != d)
            total = sum_p.bind(e, axes=(d,))
            wide = broadcast_p.bind(total, shape=shape_of(x), broadcast_dimensions=kept)
            return a.div(e, wide)

        return f"softmax{d}", run, [i]

    def op_jump_reduce(self):
        i = self.pick(1)
        if i is None:
            return None
        d, name = self.axis(self.values[i]), self.choice(["max", "min", "argmax"])
        salt = self.salted(self.values[i])
        if name == "argmax":
            run = lambda x: scaled(v.convert_element_type(argmax(salt(x), d), dtype_of(x)), 0.3)
            return f"argmax{d}", run, [i]
        prim = max_p if name == "max" else min_p
        return f"{name}{d}", lambda x: prim.bind(salt(x), axes=(d,)), [i]

    def op_cumulative(self):
        i = self.pick(1)
        if i is None:
            return None
        d, reverse = self.axis(self.values[i]), bool(self.integer(0, 1))
        name = self.choice(["cumsum", "cumprod", "cumlogsumexp"])
        f = {"cumsum": lambda x: scaled(cumsum(x, d, reverse), 0.5),
             "cumprod": lambda x: cumprod(transcendental.cos(x), d, reverse),
             "cumlogsumexp": lambda x: cumlogsumexp(x, d, reverse)}[name]  # fmt: skip
        return f"{name}{d}", f, [i]

    def op_jump_cummax(self):
        i = self.pick(1)
        if i is None:
            return None
        d, salt = self.axis(self.values[i]), self.salted(self.values[i])
        return f"cummax{d}", lambda x: cummax(salt(x), d), [i]

    def op_dot(self):
        i = self.pick(1)
        if i is None:
            return None
        x, d = self.values[i], self.axis(self.values[i])
        found = [(j, k) for j, y in enumerate(self.values) for k, n in enumerate(y.shape)
                 if n == x.shape[d]]  # fmt: skip
        j, k = self.choice(reversed(found))
        y = self.values[j]
        batch = ((), ())
        free = [(p, q) for p in range(len(x.shape)) for q in range(len(y.shape))
                if p != d and q != k and x.shape[p] == y.shape[q]]  # fmt: skip
        if free and self.integer(0, 1):
            p, q = self.choice(free)
            batch = ((p,), (q,))
        run = lambda x, y: transcendental.tanh(dot_general(x, y, (((d,), (k,)), batch)))
        return f"dot{d, k, batch}", run, [i, j]

    def op_window(self):
        i = self.pick(1)
        if i is None:
            return None
        rank, d = len(self.values[i].shape), self.axis(self.values[i])
        window = tuple(2 if k == d else 1 for k in range(rank))
        pads = tuple((1, 0) if k == d else (0, 0) for k in range(rank))
        strides = tuple(self.integer(1, 2) if k == d else 1 for k in range(rank))
        run = lambda x: scaled(reduce_window(x, 0.0, add, window, strides, pads), 0.5)
        return f"window{d}", run, [i]

    def op_conv(self):
        i = self.pick(3, 3)
        if i is None:
            return None
        x = self.values[i]
        kernel = self.constant((2, x.shape[1], 2), x.dtype)
        run = lambda x: transcendental.tanh(conv_general_dilated(x, kernel, (1,), ((1, 1),)))
        return "conv", run, [i]

    def op_cholesky(self):
        i = self.pick(2)
        if i is None or self.values[i].dtype.itemsize < 4:
            return None

        def run(x):
            product = matmul(transcendental.sin(x), swapped(transcendental.sin(x)))
            return cholesky(add(product, eye_like(product)))

        return "cholesky", run, [i]

    # ---- sorting

    def op_jump_scatter_max(self):
        i = self.pick(1)
        if i is None:
            return None
        x = self.values[i]
        salt, updates = self.salted(x), self.constant(x.shape, x.dtype)
        at = np.random.default_rng(self.integer(0, 99)).integers(0, x.shape[0], (x.shape[0], 1))
        numbers = ScatterDimensionNumbers(tuple(range(1, len(x.shape))), (0,), (0,))
        return "scatter_max", lambda x: scatter_max(salt(x), at, updates, numbers), [i]

    def op_jump_sort(self):
        i = self.pick(1)
        if i is None:
            return None
        d, salt = self.axis(self.values[i]), self.salted(self.values[i])
        name = self.choice(["sort", "sort_key_val", "top_k"])
        f = {"sort": lambda x: sort(salt(x), d),
             "sort_key_val": lambda x: sort_key_val(salt(x), transcendental.sin(x), d)[1],
             "top_k": lambda x: top_k(salt(x), 1 + shape_of(x)[-1] // 2)[0]}[name]  # fmt: skip
        return f"{name}{d}", f, [i]
