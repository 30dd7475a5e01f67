"""The errors that funcgrad raises, all importable as `funcgrad.errors`.

Each derives from the built-in class a caller would catch anyway (TypeError, ValueError, …), so no
program needs to know these names to handle them.
"""


class FuncgradError(Exception):
    """The base of every error class defined here."""


class TreeError(FuncgradError, ValueError):
    """Two pytrees that must have one structure differ; the message names the path."""


class ShapeError(FuncgradError, TypeError):
    """Shapes do not fit together; the message names the operation, the arguments, the shapes."""


class DTypeError(FuncgradError, TypeError):
    """An operation got a dtype that it is not defined for."""


class TypePromotionError(FuncgradError, TypeError):
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


class DifferentiationError(FuncgradError, TypeError):
    """An operation or an argument can't be differentiated in the way that was asked for."""


class BatchingError(FuncgradError, ValueError):
    """Arguments of `vmap` that do not fit together, or an operation that can't be batched."""


class CustomRuleError(FuncgradError, TypeError):
    """A custom derivative rule returned a wrong structure, shape or dtype."""


class ControlFlowError(FuncgradError, TypeError):
    """Branches, bodies or carries of a control-flow operation whose types do not agree."""


class OutOfBoundsError(FuncgradError, IndexError):
    """An index lies outside its axis."""


class NonFiniteError(FuncgradError, FloatingPointError):
    """A NaN appeared while `debug_nans` was on."""


class ShardingError(FuncgradError, ValueError):
    """A mesh, a partition spec or a sharding doesn't fit its array, or another one."""


class CollectiveError(FuncgradError, RuntimeError):
    """A collective failed: ranks disagree, one is gone or late."""


class CheckpointError(FuncgradError, RuntimeError):
    """A checkpoint can't be written, is damaged, or holds something else than is asked for."""


class IRError(FuncgradError, TypeError):
    """A program does not typecheck: a fault in a transformation, never in a user's code."""


class CompileError(FuncgradError, RuntimeError):
    """A backend can't compile a program."""
