"""The backend that simulates a GPU, and programs planned for it, for the tests beside this file."""

from functools import partial

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda.executable import BACKEND, SimulatedProgram
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.plan import plan
from funcgrad.core.backend import register_backend
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.passes.simplify import simplify

NAME = "cuda-simulated"
register_backend(NAME, lambda: BACKEND)
simulated = partial(jit, backend=NAME)


def program_of(f, *args, donated=None):
    """A function's program for a GPU."""
    jaxpr = simplify(fg.make_jaxpr(f)(*args).jaxpr)
    given = donated or [False] * len(jaxpr.ins)
    return plan(jaxpr, given, getattr(f, "__name__", "f"), CUDA)


def planned(f, *args, seed=0, donated=None, **more):
    """Such a program, to be simulated."""
    return SimulatedProgram(program_of(f, *args, donated=donated), seed=seed, **more)


def softmax(x):
    e = fnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x):
    m = x.mean(-1, keepdims=True)
    return (x - m) / fnp.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5)


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)
