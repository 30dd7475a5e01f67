"""A namespace of symbols: runs an `impl` as a compiler does, and refuses what none can trace."""

import numpy as np

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
             "rshift")  # fmt: skip


def unwrap(value):
    return value.value if isinstance(value, Symbol) else value


def wrap(value):
    return Symbol(np.asarray(value))


def _binary(name):
    def method(self, other):
        out = getattr(self.value, name)(
            np.asarray(other.value) if isinstance(other, Symbol) else other
        )
        return NotImplemented if out is NotImplemented else wrap(out)

    return method


def _unary(name):
    return lambda self: wrap(getattr(self.value, name)())


class Symbol:
    """A value that has a dtype, operators, `astype`, `view`, `real` and `imag`, and no more."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, value):
        self.value = value

    dtype = property(lambda self: self.value.dtype)
    real = property(lambda self: wrap(self.value.real))
    imag = property(lambda self: wrap(self.value.imag))

    def astype(self, dtype):
        return wrap(self.value.astype(dtype))

    def view(self, dtype):
        return wrap(self.value.view(dtype))

    def __bool__(self):
        raise TypeError("a branch on a value can't be traced")

    def __array__(self, dtype=None, copy=None):
        raise TypeError("numpy was called on a symbol, not through xp")


for op in OPERATORS:
    setattr(Symbol, f"__{op}__", _binary(f"__{op}__"))
    setattr(Symbol, f"__r{op}__", _binary(f"__r{op}__"))
for op in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{op}__", _binary(f"__{op}__"))
for op in ("neg", "invert", "abs"):
    setattr(Symbol, f"__{op}__", _unary(f"__{op}__"))


class Names:
    """NumPy's elementwise functions on symbols; `used` collects which were called."""

    def __init__(self):
        self.used = set()

    def __getattr__(self, name):
        function = getattr(np, name)

        def traced(*args):
            self.used.add(name)
            return wrap(function(*(unwrap(a) for a in args)))

        return traced

    def fori_loop(self, n, body, init):
        carry = tuple(init)
        for i in range(n):
            carry = tuple(body(i, carry))
        return carry

    def while_loop(self, cond, body, init):
        """Each element goes on for as long as its own condition holds."""
        carry = tuple(init)
        while (active := unwrap(cond(carry))).any():
            pairs = zip(body(carry), carry, strict=True)
            carry = tuple(wrap(np.where(active, unwrap(n), unwrap(c))) for n, c in pairs)
        return carry
