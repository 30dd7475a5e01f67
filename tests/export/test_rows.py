"""Whether a function's rows are independent, and what it computes by rows then."""

from dataclasses import replace

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, nn
from funcgrad.core.ir import eval_jaxpr
from funcgrad.errors import ExportError, FuncgradError
from funcgrad.export.rows import has_rows
from tests.export.golden_files import PYTHON, golden
from tests.op_checks import typical
from tests.op_samples import ROWS

X = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")

INDEPENDENT = {
    "a sort in rows": lambda x: fnp.sort(x, axis=1),
    "a loop": lambda x: fg.lax.fori_loop(0, 3, lambda i, c: c * 2 + x, x),
    "attention": lambda x: nn.dot_product_attention(*[x.reshape(-1, 4, 2, 2)] * 3),
    "products of matrices": lambda x: x[:, :, None] @ x[:, None],
    "a constant beside": lambda x: fnp.concatenate([x, fnp.ones((x.shape[0], 1))], 1),
}
DEPENDENT = {
    "a sum over rows": (lambda x: fnp.sum(x, 0), r"rows depend .* \(psum\)"),
    "a mean": (lambda x: x - fnp.mean(x, 0), r"rows depend on each other"),
    "numbers of rows": (lambda x: x + fnp.arange(x.shape[0])[:, None], r"\(axis_index\)"),
    "the size": (lambda x: x * x.shape[0], "in a row depends on the size b"),
    "a branch": (lambda x: fg.lax.cond(x.sum() > 0, fnp.sin, fnp.cos, x), "rows depend"),
    "running sums": (lambda x: fnp.cumsum(x, 0), "depend"),
    "the last row": (lambda x: x[-1:] + x, "depend"),
    "rows turned": (lambda x: fnp.concatenate([x[2:], x[:2]]), "computes no single rows"),
    "rows in another place": (lambda x: x.T, "b isn't the first size of result 0"),
    "all in one": (lambda x: x.reshape(-1), r"b isn't the first size of result 0, f32\[16\*b\]"),
    "a result that reads nothing": (lambda x: fnp.ones(x.shape), "aren't computed row by row"),
}


def exported_at_b(f, spec="b, 16"):
    return export.export(fg.jit(f))(fg.ShapeDtypeStruct(export.symbolic_shape(spec), "float32"))


@pytest.mark.parametrize("case", INDEPENDENT)
def test_functions_whose_rows_are_independent(case):
    e = exported_at_b(INDEPENDENT[case])
    assert e.row_size == "b"
    x = X[:5]
    rows = [np.asarray(e.rows(1).call(x[i : i + 1])) for i in range(5)]
    np.testing.assert_allclose(np.concatenate(rows), e.call(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", DEPENDENT)
def test_functions_whose_rows_are_not(case):
    f, why = DEPENDENT[case]
    e = exported_at_b(f)
    assert e.row_size is None
    with pytest.raises(ExportError, match=why):
        e.rows(1)


def test_several_names_count_no_rows():
    e = exported_at_b(fnp.sin, "b, n")
    assert e.row_size is None
    with pytest.raises(ExportError, match=r"its sizes have 2 names, \['b', 'n'\]"):
        e.rows(1)
    plain = export.export(fg.jit(fnp.sin))(X)
    assert plain.row_size is None
    assert not plain.is_symbolic
    with pytest.raises(ExportError, match="have 0 names"):
        plain.rows(1)


# ---- what is found independent is computed by rows


def evaluated(exported, args):
    """What a program's operations give, uncompiled."""
    closed = exported.jaxpr
    found = eval_jaxpr(closed.jaxpr, *closed.consts, *map(fnp.asarray, args))
    return [np.asarray(y) for y in found]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("row", [r for r in ROWS if r.prim.name not in PYTHON and not r.axis],
                         ids=str)  # fmt: skip
def test_samples_of_ops_by_rows(row):
    """Each op with a first size that is a symbol, where there is such a program."""
    for case in row.cases:
        fun, args = golden([(replace(row, cases=(case,)), typical(row))])
        leaves, structure = fg.tree.flatten(args)
        leaves = list(map(np.asarray, leaves))
        n = next((x.shape[0] for x in leaves if x.ndim), 0)
        scope = export.SymbolicScope()

        def typed(x, n=n, scope=scope):
            first = "b" if x.ndim and x.shape[0] == n else "_"
            spec = ", ".join([first, *"_" * (x.ndim - 1)]) if x.ndim else ""
            return fg.ShapeDtypeStruct(
                export.symbolic_shape(spec, like=x.shape, scope=scope), x.dtype
            )

        try:
            e = export.export(fg.jit(lambda *xs, s=structure, f=fun: f(*s.unflatten(xs))),
                              rule_order=0)(*map(typed, leaves))  # fmt: skip
        except FuncgradError:
            continue
        if n == 0 or e.row_size is None:
            continue
        one, counted = e.rows(1), list(map(has_rows, e.in_avals))
        singles = [
            evaluated(one, [x[i : i + 1] if c else x for x, c in zip(leaves, counted, strict=True)])
            for i in range(n)
        ]
        wanted = evaluated(e.rows(n), leaves)
        for want, aval, *parts in zip(wanted, e.out_avals, *singles, strict=True):
            got = np.concatenate(parts) if has_rows(aval) else parts[0]
            if want.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)
            else:
                rtol = 1e-2 if want.dtype.itemsize < 4 else 1e-4
                wide = [y.astype("complex128") for y in (got, want)]
                np.testing.assert_allclose(*wide, rtol=rtol, atol=1e-3)
