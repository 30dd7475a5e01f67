"""Random programs for property tests: blocks of steps, also with programs in programs.

A block is data (its steps) and a function of arrays. Choices come from hypothesis, which shrinks
them, or from a seed.
"""

import math
import random

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from funcgrad.ops.elementwise import arithmetic as a
from funcgrad.ops.elementwise import transcendental
from funcgrad.ops.elementwise.compare import lt
from funcgrad.ops.families import add
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control.cond import cond, switch
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.control.while_loop import fori_loop, while_loop
from funcgrad.transforms.derivatives.checkpoint import checkpoint
from funcgrad.transforms.derivatives.custom import custom_jvp, custom_vjp
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.derivatives.linear import jvp
from funcgrad.transforms.jit.jit import jit
from tests.random_integers import WIDTHS, Integers
from tests.random_steps import (
    MOST,
    Steps,
    alike,
    is_low,
    mean_of,
    scaled,
    settled,
    whole,
)


class Drawn:
    """Choices by hypothesis, which shrinks them."""

    def __init__(self, draw):
        self.draw = draw

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def one_of(self, options):
        return self.draw(st.sampled_from(list(options)))

    def order(self, n):
        return tuple(self.draw(st.permutations(range(n))))


class Rolled:
    """Choices by a seed: fast, and more varied."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def integer(self, low, high):
        return self.random.randint(low, high)

    def one_of(self, options):
        return self.random.choice(list(options))

    def order(self, n):
        return tuple(self.random.sample(range(n), n))


class Block:
    """A program of some arrays: steps that each append a value; gives its last value."""

    def __init__(self, steps, n_in):
        self.steps = tuple(steps)
        self.n_in = n_in

    def __call__(self, *args):
        values = list(args)
        for _, run, at in self.steps:
            values.append(run(*(values[i] for i in at)))
        return values[-1]

    def shorter(self):
        """The same program without its last step, or without steps that its result doesn't need."""
        needed = {self.n_in + len(self.steps) - 1}
        for k in reversed(range(len(self.steps))):
            needed |= set(self.steps[k][2]) if self.n_in + k in needed else set()
        kept = [k for k in range(len(self.steps)) if self.n_in + k in needed]
        if len(kept) == len(self.steps):
            return Block(self.steps[:-1], self.n_in) if len(kept) > 1 else None
        number = {i: i for i in range(self.n_in)}
        number |= {self.n_in + k: self.n_in + i for i, k in enumerate(kept)}
        steps = [self.steps[k] for k in kept]
        moved = [(name, run, [number[i] for i in at]) for name, run, at in steps]
        return Block(moved, self.n_in)

    def __repr__(self):
        return "; ".join(f"v{self.n_in + k} = {name}({', '.join(f'v{i}' for i in at)})"
                         for k, (name, _, at) in enumerate(self.steps))  # fmt: skip


class Programs:
    """Makes blocks of steps; steps that hold blocks. `smooth`: without ops that jump."""

    def block(self, n_steps):
        kinds = [k for k in dir(self) if k.startswith("op_")]
        if self.smooth:
            kinds = [k for k in kinds if not k.startswith("op_jump_")]
        if self.depth >= 2:
            kinds = [k for k in kinds if not k.startswith(("op_inner_", "op_jump_inner_"))]
        for _ in range(n_steps):
            name, run, at = getattr(self, self.choice(kinds))() or self.op_unary()
            out = run(*(self.values[i] for i in at))
            if math.prod(out.shape) > MOST or len(out.shape) > 4:
                continue
            self.steps.append((name, run, at))
            self.values.append(out)
        if not self.steps:
            self.steps.append(self.op_unary())
        return Block(self.steps, self.n_in)

    def inner(self, *examples, n_steps=3):
        """A block of operands of some shapes and dtypes."""
        like = [self.constant(shape, x.dtype) for x, shape in examples]
        maker = type(self)(self.choose, like, self.smooth, self.depth + 1)
        return maker.block(self.integer(1, n_steps))

    def two(self, rank=0):
        """Two operands' numbers and values."""
        i, j = self.pick(rank), self.pick()
        return None if i is None else (i, j, self.values[i], self.values[j])

    def op_inner_call(self):
        i, j, x, y = self.two()
        body = self.inner((x, x.shape), (y, y.shape))
        name = self.choice(["jit", "checkpoint", "call"])
        f = {"jit": jit, "checkpoint": checkpoint, "call": lambda f: f}[name](body)
        return f"{name}[{body}]", f, [i, j]

    def op_inner_vmap(self):
        if (found := self.two(1)) is None:
            return None
        i, j, x, y = found
        d = self.axis(x)
        body = self.inner((x, x.shape[:d] + x.shape[d + 1 :]), (y, y.shape))
        return f"vmap{d}[{body}]", vmap(body, (d, None)), [i, j]

    def op_inner_scan(self):
        if (found := self.two(1)) is None:
            return None
        i, j, x, y = found
        body = self.inner((y, y.shape), (x, x.shape[1:]))
        reverse, last = bool(self.integer(0, 1)), bool(self.integer(0, 1))

        def step(carry, row):
            new = body(carry, row)
            return settled(add(carry, alike(new, carry))), new

        def run(x, y):
            carry, rows = scan(step, y, x, reverse=reverse)
            return carry if last else rows

        return f"scan[{body}]", run, [i, j]

    def op_inner_loop(self):
        i, n = self.pick(), self.integer(0, 3)
        x = self.values[i]
        body = self.inner((x, x.shape), n_steps=2)
        turn = lambda k, y: settled(add(y, alike(body(y), y)))
        return f"fori{n}[{body}]", lambda x: fori_loop(0, n, turn, x), [i]

    def op_jump_inner_while(self):
        i = self.pick()
        x = self.values[i]
        body = self.inner((x, x.shape), n_steps=2)

        def run(x):
            n = whole(x, 3)
            turn = lambda s: (add(s[0], 1), settled(add(alike(body(s[1]), s[1]), s[1])))
            return while_loop(lambda s: lt(s[0], n), turn, (np.int32(0), x), max_steps=4)[1]

        return f"while[{body}]", run, [i]

    def op_jump_inner_cond(self):
        i, j, x, y = self.two()
        k = self.pick()
        one, two = (self.inner((x, x.shape), (y, y.shape), n_steps=2) for _ in range(2))
        like = self.choice([x, y])
        first = lambda x, y: alike(one(x, y), like)
        second = lambda x, y: alike(two(x, y), like)
        third = lambda x, y: alike(y, like)
        if self.integer(0, 1):
            run = lambda x, y, z: cond(is_low(z), first, second, x, y)
            return f"cond[{one} | {two}]", run, [i, j, k]
        run = lambda x, y, z: switch(whole(z, 2), [first, second, third], x, y)
        return f"switch[{one} | {two}]", run, [i, j, k]


class Maker(Steps, Programs):
    """Programs of floats."""

    def op_inner_derivative(self):
        i, j, x, y = self.two()
        body = self.inner((x, x.shape), (y, y.shape))
        if self.integer(0, 1):
            run = lambda x, y: scaled(grad(lambda x, y: mean_of(body(x, y)))(x, y), 0.5)
            return f"grad[{body}]", lambda x, y: transcendental.tanh(run(x, y)), [i, j]
        run = lambda x, y: jvp(lambda x: body(x, y), (x,), (transcendental.cos(x),))[1]
        return f"jvp[{body}]", lambda x, y: transcendental.tanh(run(x, y)), [i, j]

    def op_inner_custom(self):
        i = self.pick()
        x = self.values[i]
        body = self.inner((x, x.shape), n_steps=2)
        if self.integer(0, 1):
            f = custom_jvp(lambda x: body(x))
            f.defjvp(lambda p, t: jvp(body, p, t))
            return f"custom_jvp[{body}]", f, [i]
        g = custom_vjp(lambda x: transcendental.sin(x))
        g.defvjp(lambda x: (transcendental.sin(x), x),
                 lambda x, ct: (a.mul(ct, transcendental.cos(x)),))  # fmt: skip
        return "custom_vjp[sin]", g, [i]


class IntegerMaker(Integers, Programs):
    """Programs of integers."""


SHAPES = [(), (3,), (4,), (2, 3), (3, 4), (4, 2), (2, 3, 2), (1, 4)]


def program(choose, most=10, dtype=None):
    """A block and its operands: float64, or a narrower float where all of it is smooth."""
    smooth = choose.integer(0, 3) == 3 or dtype is not None
    dtype = np.dtype(dtype or ("float32" if smooth else "float64"))
    shapes = [choose.one_of(SHAPES) for _ in range(choose.integer(1, 3))]
    rng = np.random.default_rng(choose.integer(0, 999))
    args = [rng.uniform(-1.2, 1.2, s).astype(dtype) for s in shapes]
    return Maker(choose, args, smooth).block(choose.integer(1, most)), args


def narrow_program(choose, most=10):
    """Of few steps, as each rounds much."""
    dtype = choose.one_of(["float16", ml_dtypes.bfloat16])
    return program(choose, max(1, most // 2), dtype)


def integer_program(choose, most=14):
    """A block of integers of some widths, and its operands."""
    kinds = [np.dtype(choose.one_of(WIDTHS)) for _ in range(choose.integer(1, 3))]
    rng = np.random.default_rng(choose.integer(0, 999))
    args = [rng.integers(-9, 10, choose.one_of(SHAPES)).astype(d) for d in kinds]
    return IntegerMaker(choose, args, False).block(choose.integer(1, most)), args
