"""The operators, methods and properties that arrays and tracers share.

They are the functions of `funcgrad.numpy`, which ranks above this module and attaches them when it
is imported; here are the class they are attached to, and what is said of shapes and dtypes.
"""

from collections.abc import Callable

_FACTS = {
    "shape": """The number of elements along each axis.

    >>> fnp.zeros((2, 3)).shape
    (2, 3)
    """,
    "dtype": """The dtype of the elements, one of NumPy's or of ml_dtypes'.

    >>> fnp.zeros(3).dtype
    dtype('float32')
    """,
    "ndim": """The number of axes.

    >>> fnp.zeros((2, 3)).ndim
    2
    """,
    "size": """The number of elements.

    >>> fnp.zeros((2, 3)).size
    6
    """,
    "nbytes": """The bytes of all elements, `size` times `itemsize`.

    >>> fnp.zeros((2, 3)).nbytes
    24
    """,
    "itemsize": """The bytes of an element.

    >>> fnp.zeros(3).itemsize
    4
    """,
    "weak_type": """Whether the dtype comes from Python's numbers alone, and yields to others.

    >>> fnp.sin(1.0).weak_type, fnp.ones(3).weak_type
    (True, False)
    """,
}


def fact(name: str, get: Callable) -> property:
    """A property that arrays, tracers and types have in common, and its docstring.

    >>> fact("ndim", lambda self: 0).__doc__.splitlines()[0]
    'The number of axes.'
    """
    return property(get, doc=_FACTS[name])


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
