"""Names for what Python's types can't say: to a checker all of these are `Any`, or hold it.

A tracer takes an array's place wherever one may stand, a pytree is whatever its leaves are in, and
an op's parameters are its own affair. Annotations say by these names which of it is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# What programs compute with.
Value = Any  # what an op is bound to: an Array, a Tracer, a np.ndarray or a Python scalar
Result = Any  # what an op gives: a Value, or a list of them where it has `multiple`
Tangent = Any  # a Value, or a `Zero`
Cotangent = Any  # a Value, a `Zero`, or None where nothing flows back
Operand = Any  # of a rule `transpose`: a Value, or a `Linear`
Rewritten = Any  # in place of a value in rewriting: an atom, a Value, or what a `Boundary` makes
Values = Sequence[Value]
Tangents = Sequence[Tangent]
Cotangents = Sequence[Cotangent]
Operands = Sequence[Operand]
BatchDims = Sequence[int | None]  # for each value the axis of a batch, None where it has none
Scalar = Any  # a bool, int, float or complex of Python

# What rules `impl` and compiled programs compute with, where there are no traces.
PlainArray = Any  # a np.ndarray (or a scalar of NumPy's), or CuPy's array
ArrayModule = Any  # whose arrays these are: numpy, cupy, or what takes their place to look on

# What users write.
Tree = Any  # a pytree, of Values if nothing else is said
Prefix = Any  # a pytree that ends where one value holds for all below: axes, shardings
DTypeLike = Any  # a np.dtype, a class such as fnp.float32 or float, or a name
AxisName = Any  # of a mapped axis, whatever has a hash; a tuple of several where that may be

# What ops and contexts carry.
Param = Any  # a parameter of an op: sizes, names, programs, functions
Params = dict[str, Any]  # all of an op's, by name
CustomCall = Any  # of a function with derivative rules of its own: see `transforms.control`
Communicators = Callable[[tuple], Any]  # from names of axes to the communicator over them
