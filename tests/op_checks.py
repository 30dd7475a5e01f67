"""How rows of samples are called, and which rows and dtypes a test runs over."""

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.transforms.batching.vmap import vmap
from tests.op_samples import ROWS
from tests.op_samples_base import F32, F64, I32, as_list, special_operands

LANES = 3


def function(row, case):
    """The row's op as a function of arrays that gives a list."""
    if row.axis:
        mapped = vmap(lambda *xs: row.apply(*xs, **case.params), axis_name=row.axis)
        return lambda *xs: as_list(mapped(*xs))
    return lambda *xs: as_list(row.apply(*xs, **case.params))


def operands(row, case, rng, dtype):
    if row.axis:
        lanes = [case.make(rng, dtype) for _ in range(LANES)]
        return [np.stack(xs) for xs in zip(*lanes, strict=True)]
    return case.make(rng, dtype)


def arrays(values):
    return [Array(np.asarray(x)) for x in values]


def numpy_list(values):
    return [np.asarray(x) for x in values]


def typical(row):
    """The dtype in which rules are tested that no dtype changes."""
    return next((d for d in (F32, F64, I32) if d in row.dtypes), row.dtypes[0])


def by_dtype(rows=ROWS):
    return pytest.mark.parametrize(
        ("row", "dtype"), [pytest.param(r, d, id=f"{r}-{d}") for r in rows for d in r.dtypes]
    )


def by_row(rows):
    return pytest.mark.parametrize("row", list(rows), ids=str)


by_special_dtype = pytest.mark.parametrize(
    ("row", "dtype"),
    [pytest.param(r, d, id=f"{r}-{d}") for r in ROWS for d in r.dtypes if d in r.special],
)


def special_args(row, dtype):
    args = row.cases[0].args
    return special_operands(dtype, len(args), [a.dtype for a in args])


def distinct_params(row):
    return [c for i, c in enumerate(row.cases) if c.params not in [d.params for d in row.cases[:i]]]


def varying(row, case, args):
    """The op as a function of the operands with derivatives, and these operands."""
    fun = function(row, case)
    chosen = [i for i, a in enumerate(case.args) if a.smooth and i not in row.no_derivative]
    chosen = [i for i in chosen if dtypes.is_inexact(args[i].dtype)]

    def of_chosen(*xs):
        full = arrays(args)
        for i, x in zip(chosen, xs, strict=True):
            full[i] = x
        return fun(*full)

    return of_chosen, [args[i] for i in chosen]


def stacked(case, axes, rng, dtype, size=LANES):
    """Operands with lanes along their batch axes, and the operands of each lane."""
    lanes = [case.make(rng, dtype) for _ in range(size)]
    args = [
        lanes[0][i] if d is None else np.stack([lane[i] for lane in lanes], d)
        for i, d in enumerate(axes)
    ]
    by_lane = [
        [lanes[0][i] if d is None else lane[i] for i, d in enumerate(axes)] for lane in lanes
    ]
    return args, by_lane


def batched_rows():
    return [row for row in ROWS if not row.axis and row.cases_for("vmap")]
