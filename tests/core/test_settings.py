"""Settings: of blocks, of decorated functions, and of the whole process."""

import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, NonFiniteError, ShapeError, TypePromotionError


@pytest.fixture
def float32_again():
    yield
    fg.default_dtype("float32")
    fg.default_dtype("int32")


def floats():
    """The dtypes of what takes the default, made in several ways."""
    made = [fnp.zeros(1), fnp.array(1.5), fnp.mean(fnp.arange(3)), fnp.arange(3) / 2]
    return {x.dtype.name for x in made}


@pytest.mark.usefixtures("float32_again")
def test_a_call_sets_the_default_of_the_process():
    compiled = fg.jit(lambda x: x + fnp.zeros(2))
    eager = [compiled(1).dtype.name, *floats()]
    assert set(eager) == {"float32"}
    fg.default_dtype("float64")
    assert floats() == {"float64"}
    assert compiled(1).dtype == np.float64
    found = []
    thread = threading.Thread(target=lambda: found.append(floats()))
    thread.start()
    thread.join()
    assert found == [{"float64"}]
    fg.default_dtype("float32")
    assert floats() == {"float32"}
    assert compiled(1).dtype == np.float32


@pytest.mark.usefixtures("float32_again")
def test_blocks_hide_the_default_of_the_process():
    fg.default_dtype("float64")
    with fg.default_dtype("float32"):
        assert floats() == {"float32"}
    assert floats() == {"float64"}


@pytest.mark.usefixtures("float32_again")
def test_integers():
    fg.default_dtype("int64")
    assert fnp.arange(3).dtype == np.int64
    assert floats() == {"float32"}


def test_blocks_and_decorated_functions_leave_the_process_alone():
    @fg.default_dtype("float64")
    def decorated():
        return floats()

    assert floats() == {"float32"}
    assert decorated() == decorated() == {"float64"}
    with fg.default_dtype("float64"):
        found = []
        thread = threading.Thread(target=lambda: found.append(floats()))
        thread.start()
        thread.join()
        assert found == [{"float32"}]
    assert floats() == {"float32"}
    with pytest.raises(RuntimeError, match="inside"), fg.default_dtype("float64"):
        raise RuntimeError("inside")
    assert floats() == {"float32"}


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_dtypes_that_are_no_default(dtype):
    with pytest.raises(DTypeError, match="default_dtype: need a float or an integer dtype, got"):
        fg.default_dtype(dtype)
    assert floats() == {"float32"}


@pytest.mark.parametrize("run", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_infinities_are_found_beside_nans(run):
    log = run(fnp.log)
    with fg.debug_infs():
        with pytest.raises(NonFiniteError, match="log produced inf from operands .* without inf"):
            log(0.0)
        assert np.isnan(log(-1.0))
        assert np.isinf(log(np.float32(np.inf)))  # the operand has one
        with fg.debug_nans(), pytest.raises(NonFiniteError, match="log produced NaN"):
            log(-1.0)
        with fg.debug_infs(False):
            assert np.isinf(log(0.0))
    assert np.isinf(log(0.0))


@pytest.mark.parametrize("run", [lambda f: f, fg.jit, fg.vmap], ids=["eager", "jit", "vmap"])
def test_ranks_that_differ(run):
    x, y = fnp.ones((2, 2, 3)), fnp.ones((2, 3))
    add, where = run(lambda x: x + y[0]), run(lambda x: fnp.where(x > 0, x, y[0]))
    for _ in range(3):
        add(x)
    with fg.numpy_rank_promotion("raise"):
        for f in (add, where):
            with pytest.raises(ShapeError, match="have different ranks, which numpy_rank_promo"):
                f(x)
        assert run(lambda x: x + 1.0)(x).shape == x.shape
        assert run(lambda x: x + x)(x).shape == x.shape
    with fg.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="different ranks"):
        add(x)
    assert add(x).shape == x.shape


@pytest.mark.parametrize("run", [lambda f: f, fg.jit, fg.vmap], ids=["eager", "jit", "vmap"])
def test_dtypes_that_differ(run):
    x, n = fnp.ones(3, "bfloat16"), fnp.arange(3)
    add = run(lambda x, y: x + y)
    for _ in range(3):
        add(x, n)
    with fg.numpy_dtype_promotion("strict"):
        with pytest.raises(TypePromotionError, match="add: bfloat16 and int32 don't promote where"):
            add(x, n)
        with pytest.raises(TypePromotionError, match="int32 and float32 don't promote"):
            run(lambda n: n * 2.5)(n)
        assert run(lambda x: 2.5 * x)(x).dtype == x.dtype
        assert run(lambda n: 2 * n)(n).dtype == n.dtype
        assert add(x, x).dtype == x.dtype


def test_settings_are_of_the_users_own_operations():
    init = fg.nn.initializers.normal(fnp.array([1.0, 2.0]))
    with fg.numpy_rank_promotion("raise"), fg.numpy_dtype_promotion("strict"):
        assert fg.nn.one_hot(fnp.array([0, 2]), 3).shape == (2, 3)
        assert init(fg.random.key(0), (3, 2)).shape == (3, 2)
        assert fnp.broadcast_shapes((2, 1), (3,)) == (2, 3)
        with pytest.raises(ShapeError, match="where: shapes .* have different ranks"):
            fnp.where(True, fnp.ones((2, 3)), fnp.ones(3))


@pytest.mark.parametrize("setting", [fg.numpy_rank_promotion, fg.numpy_dtype_promotion])
def test_values_that_no_setting_has(setting):
    with pytest.raises(ValueError, match=f"{setting.__name__}: need one of .* got 'never'"):
        setting("never").__enter__()


def test_compilations_and_their_reasons_are_logged(caplog):
    f = fg.jit(lambda x: x * 2)
    with fg.log_compiles(), fg.explain_cache_misses():
        f(fnp.ones(3))
        f(fnp.ones(4))
        f(fnp.ones(4))
    f(fnp.ones(5))
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == 3
    assert told[0].startswith("compiled jit(<lambda>) of (f32[3]) → f32[3]: traced in ")
    assert told[1].endswith("is traced again: argument x changed from float32[3] to float32[4]")
