"""Rows of ops that read or write windows at positions known only when a program runs."""

import numpy as np

from funcgrad import dtypes
from funcgrad.ops.indexing import gather, scatter, windows_at
from funcgrad.ops.indexing.windows import GatherScatterMode
from tests.op_samples_base import (
    BOOL,
    COMPLEX,
    F32,
    F64,
    I32,
    REAL,
    Arg,
    Domain,
    Row,
    case,
)
from tests.ops.window_cases import Case, gather_loop, gathered_shape, make_case, scatter_loop

ANY = (*REAL, *COMPLEX)
CLIP, FILL, PROMISE = GatherScatterMode
SOME = (F32, F64, np.dtype("float16"), dtypes.canonical("bfloat16"), I32, np.dtype("uint8"),
        np.dtype("complex64"), np.dtype("complex128"))  # fmt: skip
WHOLE = Domain(-3, 3, whole=True)


def clipped(x, starts, sizes):
    at = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(a, a + m) for a, m in zip(at, sizes, strict=True))


def cut(x, *starts, slice_sizes):
    return x[clipped(x, starts, slice_sizes)]


def put(x, update, *starts):
    out = x.copy()
    out[clipped(x, starts, update.shape)] = update
    return out


def windows(case_, spread):
    """Indices of a window case, from a random generator of its own."""
    return Arg((*case_.counts, len(case_.numbers[2])),
               lambda rng, shape, dtype: case_.indices(rng, spread, dtype), I32)  # fmt: skip


def as_case(shape, indices_shape, numbers, sizes):
    return Case(shape, indices_shape[:-1], numbers, sizes)


def gathered(x, indices, *, dimension_numbers, slice_sizes, mode, fill_value, **hints):
    case_ = as_case(x.shape, indices.shape, dimension_numbers, slice_sizes)
    if mode is not FILL:
        return gather_loop(case_, x, indices, "clip", 0)
    fill = gather.default_fill(x.dtype) if fill_value is None else fill_value
    return gather_loop(case_, x, indices, "fill", fill)


def scattered(combine):
    def oracle(x, indices, updates, *, dimension_numbers, mode, **hints):
        sizes = gather.window_sizes(x.ndim, updates.shape, dimension_numbers)
        case_ = as_case(x.shape, indices.shape, dimension_numbers, sizes)
        how = "clip" if mode is CLIP else "drop"
        return scatter_loop(case_, x, indices, updates, how, combine)

    return oracle


def hints(sorted_=False, unique=False):
    return {"indices_are_sorted": sorted_, "unique_indices": unique}


SEEDS = (1, 2, 4, 6, 7, 8, 13, 16)


def gather_cases():
    found = []
    for i, seed in enumerate(SEEDS):
        c = make_case(seed)
        for mode, spread in ((CLIP, 1), (FILL, 1), (PROMISE, 0)):
            found.append(case(
                c.shape, windows(c, spread), dimension_numbers=c.numbers, slice_sizes=c.sizes,
                mode=mode, fill_value=0 if mode is FILL and i % 2 else None, **hints(),
                tests=None if mode is not PROMISE and not (mode is FILL and not i % 2)
                else "eager vmap jit dims",
            ))  # fmt: skip
    return tuple(found)


def scatter_cases(unique=False):
    found = []
    for seed in SEEDS:
        c = make_case(seed)
        if unique and len(c.counts) != len(c.numbers[3]):
            continue
        for mode in (CLIP, FILL):
            found.append(case(
                Arg(c.shape, WHOLE), windows(c, 0 if unique else 1), Arg(gathered_shape(c), WHOLE),
                dimension_numbers=c.scatter_numbers, mode=mode, **hints(unique=unique),
            ))  # fmt: skip
    return tuple(found)


def scatter_row(prim, combine, accepted=SOME, **rest):
    rest.setdefault("cases", scatter_cases())
    return Row(prim=prim, oracle=scattered(combine), dtypes=accepted, exact=True, **rest)


def without_updates(cases):
    """Derivatives in the operand alone are tested."""
    return tuple(
        case(c.args[0], c.args[1], Arg(c.args[2].shape, c.args[2].draw, smooth=False), **c.params)
        for c in cases
    )


def extremum_cases():
    """Distinct values, so that derivatives exist."""
    return tuple(
        case(c.args[0].shape, c.args[1], c.args[2].shape, **c.params) for c in scatter_cases()
    )


REAL_SOME = SOME[:6]
STARTS = Arg((), Domain(-1, 4), I32)
INDEX = [
    Row(prim=windows_at.dynamic_slice_p,
        oracle=cut, dtypes=ANY, exact=True, ulps=0, jit_ulps=0, cases=(
        case((6,), STARTS, slice_sizes=(3,)), case((3, 5), STARTS, STARTS, slice_sizes=(3, 2)),
        case((2, 3, 4), STARTS, STARTS, STARTS, slice_sizes=(1, 3, 2)),
        case((), slice_sizes=(), tests="eager jit"),
        case((3, 2), STARTS, STARTS, slice_sizes=(0, 2), tests="eager jit"),
    )),
    Row(prim=windows_at.dynamic_update_slice_p,
        oracle=put, dtypes=ANY, exact=True, ulps=0, jit_ulps=0,
        cases=(
            case((6,), (3,), STARTS), case((3, 5), (3, 2), STARTS, STARTS),
            case((2, 3, 4), (1, 3, 2), STARTS, STARTS, STARTS), case((), (), tests="eager jit"),
            case((3, 2), (0, 2), STARTS, STARTS, tests="eager jit"),
        )),
    Row(prim=gather.gather_p, oracle=gathered, dtypes=(BOOL, *SOME), exact=True, ulps=0, jit_ulps=0,
        cases=gather_cases()),
    scatter_row(scatter.scatter_p, lambda x, y: y, (BOOL, *SOME)),
    scatter_row(gather.scatter_add_p, np.add),
    scatter_row(scatter.scatter_mul_p, np.multiply,
                cases=without_updates(scatter_cases())),
    scatter_row(scatter.scatter_mul_p, np.multiply, name="scatter_mul unique",
                cases=scatter_cases(unique=True)),
    scatter_row(scatter.scatter_min_p, np.minimum, REAL_SOME, cases=extremum_cases()),
    scatter_row(scatter.scatter_max_p, np.maximum, REAL_SOME, cases=extremum_cases()),
]  # fmt: skip
