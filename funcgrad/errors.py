"""The errors that funcgrad raises, all importable as `funcgrad.errors`.

Each derives from the built-in classes a caller would catch anyway (TypeError, ValueError, …), so no
program needs to know these names to handle them.
"""

import inspect
import os
import re
import sys
import types
import typing

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PUBLIC = (
    "numpy", "numpy.fft", "numpy.linalg", "lax", "lax.linalg", "nn", "random", "scipy.special",
    "scipy.fft", "image", "scipy.ndimage", "scipy.signal", "scipy.integrate",
    "experimental.ode", "scipy.optimize", "scipy.interpolate", "sparse",
)  # fmt: skip


def asked(*value: typing.Any) -> str:
    """How a message begins: the function of the library that the user's code called, and of its
    arguments the one that is this value, "expand_dims: axis is "; empty where none is known."""
    frame: types.FrameType | None = sys._getframe(1)
    called = None
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        called = frame if _public_name(frame) else called
        frame = frame.f_back
    if called is None:
        return ""
    code = called.f_code
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    given = {a: called.f_locals.get(a) for a in code.co_varnames[:n]} if value else {}
    names = [a for a, x in given.items() if _holds(x, value[0])]
    return f"{_public_name(called)}: " + (f"{names[0]} is " if len(names) == 1 else "")


def within(message: str) -> str:
    """A message, after the name of the function that the user's code called if it lacks that."""
    name = asked()
    return message if re.search(rf"\b{name.rstrip(': ')}\b", message) else name + message


def no_attribute(module: str, name: str) -> AttributeError:
    """The error of a module that lacks a name; if JAX has it, why it isn't here, or what is.

    >>> print(no_attribute("funcgrad.lax", "with_sharding_constraint"))
    module 'funcgrad.lax' has no attribute 'with_sharding_constraint' as JAX has:
    `funcgrad.parallel.with_sharding_constraint`
    """
    message = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(message)
    import json  # late, as few programs need it

    with open(os.path.join(_PACKAGE, "jax_names_missing.json"), encoding="utf-8") as file:
        reason = json.load(file).get(".".join([*module.split(".")[1:], name]))
    return AttributeError(f"{message} as JAX has: {reason}" if reason else message)


def _public_name(frame: types.FrameType) -> str:
    """The name of the public function that a frame runs, or of the op that it applies.

    A frame keeps what `f_locals` showed once, an exception that it handles with it: a cycle for
    the garbage collector. So only frames whose names need it are asked.
    """
    code = frame.f_code
    name = code.co_name
    if name == "__call__":
        return getattr(frame.f_locals.get("self"), "name", "")
    if name not in frame.f_globals:  # made by a family, for a name or an op
        free = [v for v in ("name", "prim") if v in code.co_freevars]
        made: dict = {v: frame.f_locals.get(v) for v in free}
        name = str(made.get("name") or getattr(made.get("prim"), "name", ""))
    home = frame.f_globals["__name__"]
    inner = name.startswith("_") or "._" in home or home.startswith(f"{__package__}.core")
    inner = inner or home == __name__
    modules = (sys.modules.get(f"{__package__}.{m}") for m in _PUBLIC)
    # Without __all__ a module holds only what is public; with it, also what it is written with.
    public = not inner and any(name in getattr(m, "__all__", vars(m)) for m in modules if m)
    return name if public else ""


def _holds(given: typing.Any, value: typing.Any) -> bool:
    return given is value or (type(given) in (list, tuple) and any(x is value for x in given))


class FuncgradError(Exception):
    """The base of every error class defined here."""


class _Named(FuncgradError):
    """The message names the public function that was called."""

    def __init__(self, message: str):
        super().__init__(within(message))


class ArgumentError(_Named, TypeError, ValueError):
    """An argument can't be used. It is both a TypeError and a ValueError: of one mistake NumPy and
    JAX raise now the one, now the other."""


class TreeError(ArgumentError):
    """Two pytrees that must have one structure differ; the message names the path."""


class ShapeError(ArgumentError):
    """Shapes do not fit together; the message names the operation, the arguments, the shapes."""


class AxisError(ShapeError, IndexError):
    """An axis that the operand doesn't have; an IndexError, too, as NumPy's."""


class IndexTypeError(ArgumentError, IndexError):
    """An index that is none: NumPy raises an IndexError, JAX a TypeError, so this is both."""


class DTypeError(ArgumentError):
    """An operation got a dtype that it is not defined for."""


class TypePromotionError(ArgumentError):
    """Two dtypes have no implicit common dtype (float8 or int4 with another)."""


class ConcretizationError(FuncgradError, TypeError):
    """A value was needed where a traced program only knows its shape and dtype."""


class TracerBoolConversionError(ConcretizationError):
    """A tracer was used as the condition of Python control flow."""


class TracerIntegerConversionError(ConcretizationError):
    """A tracer was used where Python needs an integer."""


class TracerArrayConversionError(ConcretizationError):
    """A tracer was handed to NumPy."""


class NonConcreteBooleanIndexError(ConcretizationError, IndexError):
    """A boolean mask whose value is unknown selects an unknown number of elements."""


class LeakedTracerError(FuncgradError, RuntimeError):
    """A tracer was used after the transformation that made it had ended."""


class DonatedBufferError(FuncgradError, RuntimeError):
    """An array was used after its buffer had been donated to a compiled function."""


class DifferentiationError(ArgumentError):
    """An operation or an argument can't be differentiated in the way that was asked for."""


class BatchingError(ArgumentError):
    """Arguments of `vmap` that do not fit together, or an operation that can't be batched."""


class CustomRuleError(ArgumentError):
    """A custom derivative rule returned a wrong structure, shape or dtype."""


class ControlFlowError(ArgumentError):
    """Branches, bodies or carries of a control-flow operation whose types do not agree."""


class RefError(ArgumentError):
    """A mutable array that is returned, given twice, used where it isn't known, or written with
    what it can't hold."""


class SparseEfficiencyError(ArgumentError):
    """An operation of sparse arrays whose result would be dense, or stored with many zeros."""


class OutOfBoundsError(_Named, IndexError, ValueError):
    """An index lies outside its axis."""


class TransferError(FuncgradError, RuntimeError):
    """A value went from NumPy to an array, out of one, or to another device, where
    `transfer_guard` forbids it."""


class KeyReuseError(FuncgradError, RuntimeError):
    """A random key was used twice while `debug_key_reuse` was on."""


class NonFiniteError(FuncgradError, FloatingPointError):
    """A NaN appeared while `debug_nans` was on, or an infinity while `debug_infs` was."""


class ShardingError(FuncgradError, ValueError):
    """A mesh, a partition spec or a sharding doesn't fit its array, or another one."""


class CollectiveError(FuncgradError, RuntimeError):
    """A collective failed: ranks disagree, one is gone or late."""


class ScheduleError(FuncgradError, ValueError):
    """A pipeline's schedule lacks actions, has some twice, or waits for itself; the message names
    the rank and the action."""


class CheckpointError(FuncgradError, RuntimeError):
    """A checkpoint can't be written, is damaged, or holds something else than is asked for."""


class ExportError(ArgumentError):
    """A function can't leave Python: something in it has no place in the file or library."""


class FormatError(FuncgradError, ValueError):
    """A file is damaged, or isn't what its format says."""


class IRError(FuncgradError, TypeError):
    """A program does not typecheck: a fault in a transformation, never in a user's code."""


class CompileError(FuncgradError, RuntimeError):
    """A backend can't compile a program."""


# JAX's names.
ConcretizationTypeError = ConcretizationError
UnexpectedTracerError = LeakedTracerError
JAXIndexError = IndexTypeError
JaxprTypeError = IRError
