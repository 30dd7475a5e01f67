"""Windows by name against SciPy."""

import numpy as np
import pytest
from scipy import signal as sp

import funcgrad as fg
from funcgrad.scipy import signal

NAMES = [
    "barthann", "bartlett", "blackman", "blackmanharris", "bohman", "boxcar", "cosine",
    "exponential", "flattop", "hamming", "hann", "lanczos", "nuttall", "parzen", "triang", "tukey",
    ("tukey", 0.2), ("tukey", 1.0), ("kaiser", 4.0), 8.6, ("gaussian", 2.0),
    ("general_gaussian", 1.5, 2.0), ("general_cosine", [0.4, 0.5, 0.1]), ("general_hamming", 0.7),
    ("exponential", None, 2.0),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=str)
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_windows_are_scipys(name, periodic, n):
    if isinstance(name, tuple) and name[0] == "exponential":
        want, name = sp.get_window(name, n, periodic), ("exponential", 2.0)
    else:
        want = sp.get_window(name, n, periodic)
    with fg.default_dtype("float64"):
        found = signal.get_window(name, n, periodic)
    np.testing.assert_allclose(found, want, atol=1e-12)
    assert signal.get_window(name, n, periodic).dtype == np.float32


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("round", 3), "window must be one of"),
        (("hann", 0), "Nx must be positive"),
        ((("hann", 2.0), 3), "parameters of"),
        (("kaiser", 3), "parameters of"),
    ],
)
def test_errors_say_what_was_wrong(args, words):
    with pytest.raises(ValueError, match=words):
        signal.get_window(*args)
