"""What JAX's tests use of its internals: settings, dtypes of 32 bits, devices, a few helpers.

`own_names` gives, for a module of JAX's, the names that are not our module's of the same name.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from standin import Missing

import funcgrad as fg
import funcgrad.dtypes as fg_dtypes
import funcgrad.numpy as fnp
from funcgrad.core import ir
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.trace import Tracer
from funcgrad.lax import ciphers
from funcgrad.numpy._util import convert
from funcgrad.ops.random import threefry2x32_p
from funcgrad.parallel.meshes import virtual_devices
from funcgrad.random.keys import Key

# ---- settings


class ExplicitX64Mode(enum.Enum):
    """What explicit dtypes of 64 bits are: here they are honoured."""

    WARN, ERROR, ALLOW = range(1, 4)


SCOPES = {
    "enable_x64": fg.enable_x64, "numpy_rank_promotion": fg.numpy_rank_promotion,
    "numpy_dtype_promotion": fg.numpy_dtype_promotion, "debug_nans": fg.debug_nans,
    "debug_infs": fg.debug_infs, "disable_jit": fg.disable_jit, "log_compiles": fg.log_compiles,
    "explain_cache_misses": fg.explain_cache_misses,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "enable_x64": False, "numpy_rank_promotion": "allow", "numpy_dtype_promotion": "standard",
    "threefry_partitionable": True, "num_cpu_devices": 8, "default_prng_impl": "threefry2x32",
    "jax_num_generated_cases": 1, "max_cases_sampling_retries": 100,
}  # fmt: skip


class Setting:
    """One of JAX's settings: its value, and a block that sets it. Those that we don't have are
    only held.
    """

    def __init__(self, name: str, value: Any = None):
        self.name, self.value, self.default = name.removeprefix("jax_"), value, value

    @contextlib.contextmanager
    def __call__(self, value: Any = True) -> Iterator[None]:
        before, self.value = self.value, value
        scope = SCOPES.get(self.name)
        try:
            with scope(value) if scope and value is not None else contextlib.nullcontext():
                yield
        finally:
            self.value = before

    def __bool__(self) -> bool:
        return bool(self.value)

    def _set_global(self, value: Any) -> None:
        self.value = value


class Settings(types.ModuleType):
    """`jax._src.config` and `jax.config` in one."""

    ExplicitX64Mode = ExplicitX64Mode

    def __init__(self) -> None:
        super().__init__("jax._src.config")
        self._settings: dict[str, Setting] = {}
        self._entered: dict[str, contextlib.ExitStack] = {}

    def _setting(self, name: str, value: Any = None) -> Setting:
        name = name.removeprefix("jax_")
        return self._settings.setdefault(name, Setting(name, DEFAULTS.get(name, value)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setting = self._setting(name)
        return setting.value if name.startswith("jax_") else setting

    @property
    def config(self) -> Settings:
        return self

    FLAGS = config

    @property
    def values(self) -> dict[str, Any]:
        return {name: s.value for name, s in self._settings.items() if s.value != s.default}

    @property
    def config_states(self) -> Mapping[str, Setting]:
        return _Lookup(self._setting)

    def update(self, name: str, value: Any) -> None:
        setting = self._setting(name)
        self._entered.pop(setting.name, contextlib.ExitStack()).close()
        setting.value = value
        if setting.name in SCOPES and value != DEFAULTS.get(setting.name, False):
            self._entered[setting.name] = contextlib.ExitStack()
            self._entered[setting.name].enter_context(SCOPES[setting.name](value))

    def _read(self, name: str) -> Any:
        return self._setting(name).value

    read = _read

    def int_flag(self, name: str, default: Any = None, help: str = "") -> Setting:
        return self._setting(name, default)

    bool_flag = string_flag = int_flag

    def bool_env(self, name: str, default: bool) -> bool:
        return __import__("os").environ.get(name, str(default)).lower() in ("1", "true")

    def parse_flags_with_absl(self) -> None: ...


class _Lookup(dict):
    def __init__(self, make: Any):
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> Setting:
        return self._make(key)


CONFIG = Settings()

# ---- dtypes: without 64 bits, as JAX is by default

_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> np.dtype:
    found = np.dtype(dtype) if not fg_dtypes.issubdtype(dtype, fg_dtypes.extended) else dtype
    if CONFIG.enable_x64.value:
        return found
    return (
        np.dtype(_NARROW.get(getattr(found, "name", ""), found))
        if found is not dtype or isinstance(dtype, np.dtype)
        else found
    )


def _default(name: str) -> Any:
    return lambda: fnp.zeros((), {"i": int, "f": float, "c": complex}[name]).dtype.type


ML_DTYPES = {
    name: getattr(ml_dtypes, name, None)
    for name in (
        "bfloat16", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
        "float8_e3m4", "float8_e4m3", "float8_e8m0fnu",
        "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "int1", "int2", "int4", "uint1", "uint2", "uint4",
    )
}  # fmt: skip
DTYPES = {
    **ML_DTYPES,
    "canonicalize_dtype": canonicalize_dtype,
    "default_types": {
        "b": lambda: np.bool_, "i": _default("i"), "u": lambda: np.uint32, "f": _default("f"),
        "c": _default("c"),
    },
    "_intn_dtypes": [np.dtype(d) for n, d in ML_DTYPES.items() if "int" in n and d is not None],
    "python_scalar_types_to_dtypes": {
        bool: np.dtype(bool), int: np.dtype("int32"), float: np.dtype("float32"),
        complex: np.dtype("complex64"),
    },
    "python_scalar_types": {bool, int, float, complex},
    "is_weakly_typed": lambda x: getattr(x, "weak_type", type(x) in (int, float, complex)),
    "default_float_dtype": lambda: np.dtype(_default("f")()),
    "default_int_dtype": lambda: np.dtype(_default("i")()),
    "dtype": lambda x, **_: fnp.result_type(x) if not isinstance(x, type | str) else np.dtype(x),
    "result_type": lambda *xs, return_weak_type_flag=False: fnp.result_type(*xs),
    "promote_types": fnp.promote_types,
    "to_inexact_dtype": lambda d: fg_dtypes.to_inexact(np.dtype(d), np.dtype("float32")),
    "to_complex_dtype": lambda d: fg_dtypes.to_complex(np.dtype(d)),
    "bool_": np.bool_,
    "default_uint_dtype": lambda: np.dtype(np.uint32),
    "safe_to_cast": lambda a, b: fnp.promote_types(a, b) == np.dtype(b),
}  # fmt: skip

DLPACK = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32",
          "complex64", ml_dtypes.bfloat16)  # fmt: skip

# ---- programs


def subjaxprs(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            for held in value if isinstance(value, tuple | list) else (value,):
                if isinstance(held, ir.Jaxpr | ir.ClosedJaxpr):
                    yield getattr(held, "jaxpr", held)


class Aval(ShapedArray):
    """The type of an array, as JAX's tests make and print it."""

    __slots__ = ()

    def str_short(self, **options: Any) -> str:
        return repr(self)


def flatten_fun_nokwargs(f: Any, in_tree: Any) -> tuple[Any, Any]:
    """f on the leaves of its arguments, and what tells the structure of its last result."""
    seen = []

    def flat(*leaves: Any) -> tuple:
        outs, structure = fg.tree.flatten(f(*fg.tree.unflatten(in_tree, leaves)))
        seen.append(structure)
        return tuple(outs)

    return flat, lambda: seen[-1]


# A call inside a program: here that is `jit`.
CALL = types.SimpleNamespace(bind=lambda *args, subfuns: fg.jit(subfuns[0])(*args))
CORE = {
    "call_p": CALL, "closed_call_p": CALL, "check_jaxpr": ir.typecheck,
    "valid_jaxtype": lambda x: isinstance(x, Array | Tracer | np.ndarray | np.generic | int | float
                                          | complex),
    "Primitive": Missing("jax.core.Primitive"), "ShapedArray": Aval,
    "Tracer": Tracer, "reset_trace_state": lambda: True, "subjaxprs": subjaxprs,
    "trace_state_clean": lambda: True, "pytype_aval_mappings": {},
}  # fmt: skip

# ---- devices, and what counts compilations


def _namespace(**names: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**names)


def _get_backend(platform: str | None = None) -> Any:
    return _namespace(platform="cpu", platform_version="", devices=many_devices)


_get_backend.cache_clear = lambda: None  # type: ignore[attr-defined]


def many_devices(backend: str | None = None) -> list:
    return list(virtual_devices(8))


MANY = {
    "devices": many_devices, "local_devices": lambda *_, **__: many_devices(),
    "device_count": lambda backend=None: 8, "local_device_count": lambda backend=None: 8,
}  # fmt: skip
DEVICES = {
    **MANY,
    "get_backend": _get_backend, "num_cpu_devices": _namespace(value=8),
    "backend_pjrt_c_api_version": lambda: None, "backend_stablehlo_version": lambda: None,
}  # fmt: skip
NO_MISSES = _namespace(cache_info=lambda: _namespace(misses=0), cache_clear=lambda: None)

# ---- helpers


def safe_zip(*sequences: Any) -> list:
    return list(zip(*map(list, sequences), strict=True))


def safe_map(f: Any, *sequences: Any) -> list:
    return [f(*row) for row in safe_zip(*sequences)]


def unzip2(pairs: Any) -> tuple[tuple, tuple]:
    found = tuple(pairs)
    return tuple(a for a, _ in found), tuple(b for _, b in found)


def split_list(items: Any, sizes: Any) -> list[list]:
    rest, found = list(items), []
    for size in sizes:
        found.append(rest[:size])
        rest = rest[size:]
    return [*found, rest]


def partition_list(right: Any, items: Any) -> tuple[list, list]:
    pairs = safe_zip(right, items)
    return [x for b, x in pairs if not b], [x for b, x in pairs if b]


def broadcast_prefix(leaves: Any, prefix: Any, full: Any) -> list:
    """The leaves of a prefix of a tree, each as often as the tree has leaves beneath it."""
    places = fg.tree.unflatten(full, range(full.num_leaves))
    return fg.tree.leaves(fg.tree.broadcast(fg.tree.unflatten(prefix, leaves), places))


API_UTIL = {
    "debug_info": lambda *_, **__: None, "flatten_fun_nokwargs": flatten_fun_nokwargs,
}  # fmt: skip
UTIL = {
    "safe_zip": safe_zip, "safe_map": safe_map, "unzip2": unzip2, "split_list": split_list,
    "partition_list": partition_list, "foreach": lambda f, *xs: safe_map(f, *xs) and None,
    "install_failure_signal_handler": lambda: None,
    "prod": lambda xs: functools.reduce(lambda a, b: a * b, xs, 1),
}  # fmt: skip


def _promote(inexact: bool, *args: Any) -> list:
    dtype = fnp.result_type(*args)
    dtype = fg_dtypes.to_inexact(dtype, np.dtype("float32")) if inexact else dtype
    return [
        np.asarray(x).astype(dtype)
        if isinstance(x, np.ndarray | np.generic)
        else fnp.asarray(x, dtype)
        for x in args
    ]


def _convert(x: Any, dtype: Any = None, weak_type: bool = False) -> Any:
    x = fnp.asarray(x)
    return convert(x, x.dtype if dtype is None else fg_dtypes.canonical(dtype), weak_type)


def curry(f: Any) -> Any:
    return lambda *args, **kwargs: functools.partial(f, *args, **kwargs)


def _take(x: Any, idx: Any, mode: Any = None, fill_value: Any = None,
          normalize_indices: bool = True, **_: Any) -> Any:  # fmt: skip
    return (
        fnp.asarray(x)
        .at[idx]
        .get(mode=mode, fill_value=fill_value, wrap_negative_indices=normalize_indices)
    )


# Settings that JAX has and we may not: blocks that only hold their value.
HELD = {
    name: Setting(name)
    for name in (
        "default_matmul_precision", "default_device", "transfer_guard", "enable_checks",
        "legacy_prng_key", "softmax_custom_jvp", "no_tracing", "no_execution",
        "enable_custom_prng", "default_prng_impl", "threefry_partitionable", "debug_key_reuse",
    )
    if not hasattr(fg, name)
}  # fmt: skip
# What tests look at of the generator that a key is for.
Key._impl = property(  # type: ignore[attr-defined]
    lambda key: _namespace(key_shape=key.data.shape[key.ndim :], name=key.impl)
)
Key._base_array = property(lambda key: key.data)  # type: ignore[attr-defined]


def _cipher(fun: Any) -> Any:
    """A generator's primitive: its function of words, in arrays."""
    return _namespace(bind=lambda *words: fun(*map(fnp.asarray, words)))


CIPHERS = {
    f"jax._src.random.{name}": {f"{name}_p": _cipher(fun)}
    for name, fun in (
        ("threefry2x32", threefry2x32_p.bind), ("threefry4x32", ciphers.threefry4x32),
        ("philox2x32", ciphers.philox2x32), ("philox4x32", ciphers.philox4x32),
    )
}  # fmt: skip
OWN: dict[str, Mapping[str, Any]] = {
    **CIPHERS,
    "jax": {
        **HELD,
        **MANY,
        "config": CONFIG,
        "__version__": "0.10.2",
        "__version_info__": (0, 10, 2),
    },
    "jax._src": {"config": CONFIG},
    "jax._src.dtypes": DTYPES,
    "jax.experimental.jet": {
        "fact": lambda n: fg.lax.exp(fg.lax.lgamma(n + 1.0)),
        "zero_series": object(),
    },
    "jax._src.core": CORE,
    "jax.core": CORE,
    "jax.api_util": API_UTIL,
    "jax._src.api_util": API_UTIL,
    "jax._src.linear_util": {"wrap_init": lambda f, params=None, *, debug_info=None: f},
    "jax._src.tree_util": {"broadcast_flattened_prefix_with_treedef": broadcast_prefix},
    "jax._src.xla_bridge": DEVICES,
    "jax._src.dispatch": {"xla_primitive_callable": NO_MISSES},
    "jax._src.util": {**UTIL, "curry": curry},
    "jax._src.random.prng": {
        "PRNGKeyArray": Key,
        "prngs": {name: Missing(name) for name in ("threefry2x32", "rbg", "unsafe_rbg")},
    },
    "jax._src.dlpack": {"SUPPORTED_DTYPES_SET": frozenset(map(np.dtype, DLPACK))},
    "jax._src.array": {"ArrayImpl": Array},
    "jax._src.sharding_impls": {"make_single_device_sharding": fg.sharding.SingleDeviceSharding},
    "jax.sharding": {"make_single_device_sharding": fg.sharding.SingleDeviceSharding},
    "jax._src.lax.lax": {
        "asarray": fnp.asarray,
        "_convert_element_type": _convert,
    },
    "jax._src.compilation_cache": {"_cache": None, "is_persistent_cache_enabled": lambda: False},
    "jax._src.cloud_tpu_init": {"running_in_cloud_tpu_vm": False},
    "jax._src.deprecations": {"is_accelerated": lambda name: False},
    "jax._src.lib": {"version": (0, 10, 2), "cuda_versions": None, "jaxlib_extension_version": 999},
    "jax._src.lib._jax": {
        f"is_{x}": lambda: False for x in ("asan", "msan", "tsan", "sanitized", "optimized_build")
    },
    "jax._src.numpy.util": {
        "promote_dtypes": functools.partial(_promote, False),
        "promote_dtypes_inexact": functools.partial(_promote, True),
    },
    "jax._src.numpy.indexing": {"rewriting_take": _take},
    "jax._src.interpreters.mlir": {"_platforms_with_donation": []},
}


def own_names(module: str) -> Mapping[str, Any]:
    return OWN.get(module, {})
