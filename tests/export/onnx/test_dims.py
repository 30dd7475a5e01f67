"""Sizes with formulas."""

from funcgrad.export.onnx.dims import Dim, evaluated, fitted, is_static, product, shown


def test_arithmetic_keeps_value_and_formula():
    n, m = Dim(7, "n"), Dim(5, "m")
    for size in (n + 1, 3 - n, 2 * n * m, (n + m) // 2, -n, n - m + 4, product((2, n, m))):
        assert size == evaluated(size.formula, {"n": 7, "m": 5})
        other = evaluated(size.formula, {"n": 11, "m": 3})
        assert isinstance(other, int)
    assert n - n == 0
    assert not isinstance(n - n, Dim)
    assert is_static((n // n, 3))
    assert not is_static((n,))


def test_formulas_are_found_from_values():
    points = [{"n": 19, "m": 23}, {"n": 29, "m": 23}, {"n": 19, "m": 31}, {"n": 37, "m": 41}]
    for text, f in {
        "3*n+2*m-1": lambda n, m: 3 * n + 2 * m - 1,
        "2*(n*m)": lambda n, m: 2 * n * m,
        "n+1": lambda n, m: n + 1,
        "5": lambda n, m: 5,
    }.items():
        found = fitted(points, [f(**p) for p in points])
        assert shown(getattr(found, "formula", found)) == text
    assert fitted(points, [p["n"] ** 2 + 1 for p in points]) is None
