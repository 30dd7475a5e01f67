"""Steps that run in Python: a primitive's `impl` on NumPy arrays.

NumPy decomposes the matrices of a batch, and transforms the rows of an array, one after the other
and lets go of the interpreter meanwhile, so a batch is cut into a part for each thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.llvm.runtime.pool import num_threads
from funcgrad.backends.program import HostStep
from funcgrad.backends.rewrites.complex_pairs import on_complex_p
from funcgrad.ops.fft import fft_p
from funcgrad.ops.linalg.decompositions import eig_p, eigh_p, qr_p, svd_p

_BATCHED = frozenset((eig_p, eigh_p, qr_p, svd_p))
# Larger matrices have threads of NumPy's own linear algebra.
_OWN_THREADS = 128
# Multiply-adds from which on it is worth while to start a thread; elements of a Fourier transform.
_THREADS_FROM, _TRANSFORMED_FROM = 1 << 20, 1 << 16


def run_host_step(step: HostStep, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
    """Run a step's primitive on arrays, its results copied into `outs`."""
    if step.prim.effect or any(callable(p) for p in step.params.values()):
        # Users' functions may keep what they are given; this memory is soon used again.
        ins = [x.copy() for x in ins]
    parts = _parts(step)
    if parts == 1:
        _run(step, ins, outs)
        return
    errors: list[BaseException] = []
    over = [threading.Event() for _ in range(parts)]

    def run(part: int) -> None:
        cut = slice(*(len(ins[0]) * i // parts for i in (part, part + 1)))
        try:
            _run(step, [x[cut] for x in ins], [x[cut] for x in outs])
        except BaseException as error:
            errors.append(error)
        finally:
            over[part].set()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(1, parts)]
    try:
        for t in threads:
            t.start()
        run(0)
    finally:
        # An interrupt waits, too: what they write to is used again. (Not by `join`: one that is
        # interrupted takes its thread for ended, in Python 3.11.)
        begun = [e for t, e in zip(threads, over[1:], strict=True) if t.ident is not None]
        while not all(e.is_set() for e in begun):
            try:
                for e in begun:
                    e.wait()
            except BaseException as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _parts(step: HostStep) -> int:
    """Into how many parts a step's batch is cut."""
    prim, params = step.prim, step.params
    shape = step.ins[0].aval.shape if step.ins else ()
    if prim is on_complex_p:
        # What runs on complex views of pairs names itself in its parameters.
        shape = shape[:-1] if any(params["pairs"][:1]) else shape
        prim, params = params["prim"], params["params"]
    if prim is fft_p:
        worth = len(shape) > len(params["fft_lengths"]) and math.prod(shape) >= _TRANSFORMED_FROM
    elif prim in _BATCHED and len(shape) > 2:
        sizes = shape[-2:]
        work = math.prod(shape) * min(sizes)
        worth = max(sizes) <= _OWN_THREADS and work >= _THREADS_FROM
    else:
        worth = False
    return max(1, min(shape[0], num_threads())) if worth else 1


def _run(step: HostStep, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
    with np.errstate(all="ignore"):
        results = step.prim.impl(np, *ins, **step.params)
        for out, result in zip(outs, results if step.prim.multiple else [results], strict=True):
            np.copyto(out, result, casting="unsafe")
