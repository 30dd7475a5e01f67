"""Every op on the plain backend, by its row of samples, gives what eager evaluation gives.

What a new backend begins with: another name, and the same rows.
"""

from functools import partial

import numpy as np
import pytest

from funcgrad.transforms.jit.jit import jit
from tests.op_checks import (
    batched_rows,
    by_dtype,
    by_row,
    by_special_dtype,
    distinct_params,
    operands,
    special_args,
    typical,
)
from tests.op_samples import ROWS
from tests.test_ops_compiled import backwards, check_gradients, check_jit, check_vmap

compiled = partial(jit, backend="plain")
JIT = [row for row in ROWS if row.cases_for("jit")]


@pytest.mark.sampled(2)
@by_dtype(JIT)
def test_jit(row, dtype, rng):
    cases = row.cases_for("jit")
    check_jit(row, cases, [operands(row, c, rng, dtype) for c in cases], jit=compiled)


@by_special_dtype
def test_special_values(row, dtype):
    cases = distinct_params(row)
    check_jit(row, cases, [special_args(row, dtype)] * len(cases), jit=compiled)


@by_row([row for row in JIT if not row.axis])
def test_strided_operands(row, rng):
    cases = [c for c in row.cases_for("jit") if c.args]
    args = [operands(row, c, rng, typical(row)) for c in cases]
    args = [[np.asarray(backwards(x)) for x in xs] for xs in args]
    check_jit(row, cases, args, backwards, jit=compiled)


@pytest.mark.sampled(2)
@by_row([row for row in JIT if row.order and row.cases_for("grad")])
def test_gradients(row, rng):
    check_gradients(row, rng, compiled)


@by_row([row for row in batched_rows() if row.cases_for("jit")])
def test_vmap(row, rng):
    check_vmap(row, rng, compiled)
