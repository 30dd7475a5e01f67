"""The operators and methods that arrays and tracers share.

They are the functions of `funcgrad.numpy`, which ranks above this module and attaches them when it
is imported; here is only the class they are attached to.
"""


class ArrayMethods:
    """Base of `Array` and `Tracer`; `funcgrad.numpy` attaches operators and methods."""

    __slots__ = ()
    # NumPy's operators defer to ours: np.ones(3) * x is an Array.
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]


def attach(methods: dict) -> None:
    """Set the operators and methods of arrays and tracers, once, at import."""
    for name, method in methods.items():
        setattr(ArrayMethods, name, method)
