"""JAX's other names for what is here: they are the same things, and found where JAX has them."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShapeError, ShardingError


def test_other_names_are_the_same_things():
    assert fg.remat is fg.checkpoint
    assert fg.jacobian is fg.jacrev
    assert fg.float0 == fg.dtypes.float0
    assert lax.sin_p is lax.sin
    assert fg.errors.UnexpectedTracerError is fg.errors.LeakedTracerError
    assert fg.custom_derivatives.custom_vjp is fg.custom_vjp
    assert isinstance(fg.jit(lambda x: x), fg.stages.Wrapped)
    assert isinstance(fg.jit(lambda x: x).trace(1.0), fg.stages.Traced)
    assert isinstance(fg.jit(lambda x: x).lower(1.0).compile(), fg.stages.Compiled)
    with pytest.raises(AttributeError, match="no attribute 'nothing_p'"):
        lax.nothing_p  # noqa: B018


@pytest.mark.parametrize("name", fg.__all__)
def test_each_public_name_is_there(name):
    assert getattr(fg, name) is not None
    assert name in dir(fg)


def test_types():
    assert str(fg.typeof(fnp.ones((2, 3)))) == "f32[2,3]"
    seen = []
    fg.jit(lambda x: seen.append(str(fg.typeof(x))) or x)(fnp.ones(4))
    assert seen == ["f32[4]"]
    assert isinstance(fnp.ones(2), fg.typing.ArrayLike)
    assert isinstance(1.0, fg.typing.ArrayLike)
    assert not isinstance("a", fg.typing.ArrayLike)


def test_named_calls():
    text = str(fg.jit(fg.named_call(lambda x: fnp.sin(x), name="wave")).lower(1.0).as_text("jaxpr"))
    assert "sin" in text
    assert fg.named_call(lambda x: x + 1)(2.0) == 3.0


def test_known_values_are_evaluated_while_tracing():
    @fg.jit
    def f(x):
        with fg.ensure_compile_time_eval():
            n = int(fnp.sum(fnp.arange(4)))
        return x * n

    assert f(2) == 12
    assert "reduce_sum" not in str(fg.make_jaxpr(f)(2))


def test_zeros_of_primals():
    zero = fg.custom_derivatives.zero_from_primal({"x": fnp.ones(2), "n": 3})
    assert zero["x"].tolist() == [0.0, 0.0]
    assert zero["n"].dtype == fg.float0
    symbolic = fg.custom_derivatives.zero_from_primal(1.0, symbolic_zeros=True)
    assert isinstance(symbolic, fg.custom_derivatives.SymbolicZero)


# ---- devices


def test_one_process():
    assert (fg.process_count(), fg.process_index(), fg.process_indices()) == (1, 0, [0])
    assert fg.device_count() == fg.local_device_count() == 1
    assert fg.local_devices() == fg.local_devices(0) == fg.devices()
    assert fg.default_backend() == "cpu"
    with pytest.raises(ValueError, match=r"process_index must be one of 0 … 0, got 1"):
        fg.local_devices(1)
    assert fg.device_put(fnp.ones(2), fg.devices()[0]).device == fg.devices()[0]


MESH = fg.make_mesh((2, 2), ("x", "y"))


@pytest.mark.parametrize(
    "spec", [fg.P("x"), fg.P("y", "x"), fg.P(("x", "y")), fg.P(), fg.P(None, "x")]
)
def test_arrays_of_parts(spec):
    whole = np.arange(32.0, dtype=np.float32).reshape(4, 8)
    cut = fg.NamedSharding(MESH, spec)
    parts = [whole[index] for index in cut.devices_indices_map(whole.shape).values()]
    made = fg.make_array_from_single_device_arrays(whole.shape, cut, parts)
    assert np.array_equal(made, whole)
    assert made.sharding == cut
    local = fg.make_array_from_process_local_data(cut, whole)
    assert np.array_equal(local, whole)
    assert np.array_equal(fg.make_array_from_process_local_data(cut, whole, (4, 8)), whole)
    assert isinstance(made.sharding, fg.sharding.Sharding)
    assert np.array_equal(fg.reshard(made, fg.NamedSharding(MESH, fg.P())), whole)


def test_arrays_of_wrong_parts():
    cut = fg.NamedSharding(MESH, fg.P("x"))
    with pytest.raises(ShardingError, match="has 4 devices of the mesh, .* got 1"):
        fg.make_array_from_single_device_arrays((4,), cut, [np.ones(2)])
    with pytest.raises(ShapeError, match=r"global_shape is \(8,\)"):
        fg.make_array_from_process_local_data(cut, np.ones(4), (8,))


def test_arguments_that_are_none():
    with pytest.raises(TypeError, match="named_call: need a function, got 3"):
        fg.named_call(3)
    with pytest.raises(TypeError, match="typeof: x must be an array or a number, got 'a'"):
        fg.typeof("a")
    with pytest.raises(fg.errors.DTypeError, match="scalar_type_of: x must be an array or"):
        fg.dtypes.scalar_type_of("a")


@pytest.mark.parametrize(
    ("dtype", "kind", "expected"),
    [
        ("bfloat16", np.floating, True), ("int4", np.integer, True), ("int8", float, False),
        (np.floating, np.inexact, True), ("uint8", np.unsignedinteger, True),
        (fg.random.key(0).dtype, fg.dtypes.prng_key, True),
        (fg.random.key(0).dtype, fg.dtypes.extended, True),
        (fg.random.key(0).dtype, np.floating, False), ("float32", fg.dtypes.prng_key, False),
        ("float32", "float32", True), (fg.dtypes.prng_key, fg.dtypes.extended, True),
    ],
)  # fmt: skip
def test_kinds_of_dtypes(dtype, kind, expected):
    assert fg.dtypes.issubdtype(dtype, kind) is expected
    assert fnp.issubdtype(dtype, kind) is expected


def test_questions_about_dtypes():
    assert fg.dtypes.canonicalize_dtype("float64") == np.float64
    key_dtype = fg.random.key(0).dtype
    assert fg.dtypes.canonicalize_dtype(key_dtype, allow_extended_dtype=True) is key_dtype
    assert [fg.dtypes.itemsize_bits(d) for d in ("int4", "bool", "complex64")] == [4, 8, 64]
    kinds = [np.int8(1), np.bool_(True), fnp.ones(2, "bfloat16"), 1j]
    assert [fg.dtypes.scalar_type_of(x) for x in kinds] == [int, bool, float, complex]
    assert fg.dlpack.is_supported_dtype("int8")


def test_blocks_of_64_bits():
    with fg.enable_x64():
        assert (fnp.zeros(1).dtype, fnp.arange(2).dtype) == (np.float64, np.int64)
        with fg.enable_x64(False):
            assert (fnp.zeros(1).dtype, fnp.arange(2).dtype) == (np.float32, np.int32)
    with fg.checking_leaks():
        assert fnp.zeros(1).dtype == np.float32
