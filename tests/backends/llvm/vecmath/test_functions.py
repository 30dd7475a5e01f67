"""Elementary functions against more precise ones, at every exponent and special value."""

import ctypes
import re
from functools import cache

import mpmath
import numpy as np
import pytest
from scipy import special

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.vecmath import functions, trig

F32, F64, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(64)

BINARY = ("power", "arctan2", "hypot", "fmod", "nextafter")
EXACT = ("fmod", "nextafter")
SCALAR_F64 = ("lgamma", "fmod")  # left to libm

# name: (the function of doubles, bound in ulp for float, bound for double)
UNARY = {
    "exp": (np.exp, 1, 1),
    "exp2": (np.exp2, 1, 1),
    "expm1": (np.expm1, 2, 2),
    "log": (np.log, 1.5, 1.5),
    "log2": (np.log2, 2, 1),
    "log10": (np.log10, 2, 1),
    "log1p": (np.log1p, 2, 2),
    "sin": (np.sin, 2, 1),
    "cos": (np.cos, 2, 1),
    "tan": (np.tan, 4, 2),
    "sinh": (np.sinh, 2, 2),
    "cosh": (np.cosh, 1.5, 1.5),
    "tanh": (np.tanh, 2.5, 2.5),
    "arcsin": (np.arcsin, 2, 2),
    "arccos": (np.arccos, 1.5, 1.5),
    "arctan": (np.arctan, 2, 1.5),
    "arcsinh": (np.arcsinh, 1, 2),
    "arccosh": (np.arccosh, 1, 2.5),
    "arctanh": (np.arctanh, 2.5, 2.5),
    "cbrt": (np.cbrt, 1, 1),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "logistic": (special.expit, 2.5, 2.5),
    "erf": (special.erf, 6, 2),
    "erfc": (special.erfc, 8, 5),
    "erf_inv": (lambda x: np.copysign(special.erfinv(x), x), 4, 5),
    "lgamma": (lambda x: np.where(np.isinf(x), np.inf, special.gammaln(x)), 2, None),
    "digamma": (special.digamma, 1, None),
}

# Where doubles are sampled uniformly, besides random bits.
INTERVAL = {
    "exp": (-745, 709), "exp2": (-1074, 1023), "expm1": (-40, 709), "sinh": (-710, 710),
    "cosh": (-710, 710), "tanh": (-20, 20), "logistic": (-745, 40), "erf": (-6, 6),
    "erfc": (-6, 26), "arcsin": (-1, 1), "arccos": (-1, 1), "arctanh": (-1, 1), "erf_inv": (-1, 1),
    "log": (0, 4), "log2": (0, 4), "log10": (0, 4), "log1p": (-1, 4), "rsqrt": (0, 4),
    "arccosh": (1, 10), "digamma": (-10, 20),
}  # fmt: skip
MP = {
    "exp": mpmath.exp, "exp2": lambda x: mpmath.mpf(2) ** x, "expm1": mpmath.expm1,
    "log": mpmath.log, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10,
    "log1p": mpmath.log1p, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "arcsin": mpmath.asin,
    "arccos": mpmath.acos, "arctan": mpmath.atan, "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)), "erf": mpmath.erf, "erfc": mpmath.erfc,
    "erf_inv": mpmath.erfinv, "digamma": mpmath.digamma,
}  # fmt: skip


def loop_of(name, kind=F32):
    """The module of `for i: out[i] = name(x[i], …)`."""
    arity = 2 if name in BINARY else 1
    module = ir.Module(name)
    pointers = [ir.PTR] * (arity + 1)
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [*pointers, I64]), "kernel")
    for a in fn.args[:-1]:
        a.add_attribute("noalias")
    entry, loop, end = (fn.append_basic_block(s) for s in ("entry", "loop", "end"))
    IRBuilder(entry).branch(loop)
    b = IRBuilder(loop)
    i = b.phi(I64)
    xs = [b.load(b.gep(a, [i], kind), kind) for a in fn.args[:arity]]
    b.store(functions.emit(b, name, xs), b.gep(fn.args[arity], [i], kind))
    following = b.add(i, I64(1))
    i.add_incoming(I64(0), entry)
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, fn.args[-1]), loop, end)
    IRBuilder(end).ret_void()
    return module


@cache
def compiled(name, kind=F32):
    return engine().compile(loop_of(name, kind))


def run(name, *xs):
    xs = [np.ascontiguousarray(x) for x in xs]
    library = compiled(name, F32 if xs[0].dtype == np.float32 else F64)
    out = np.empty_like(xs[0])
    types = [ctypes.c_void_p] * (len(xs) + 1) + [ctypes.c_int64]
    kernel = ctypes.CFUNCTYPE(None, *types)(library.address("kernel"))
    kernel(*(x.ctypes.data for x in (*xs, out)), out.size)
    return out


def specials(dtype):
    tiny, info = np.finfo(dtype).smallest_subnormal, np.finfo(dtype)
    one = dtype(1)
    values = [0, tiny, 3 * tiny, info.tiny, np.nextafter(info.tiny, dtype(0)), 0.5, 1, 1.5, 2, 3]
    values += [np.nextafter(one, dtype(0)), np.nextafter(one, dtype(2)), 4, 7, 10, 100, 1e30]
    values += [2.0**23, 2.0**24 + 2, 2.0**31, info.max, np.inf]
    values = np.array(values, dtype)
    return np.concatenate([values, -values, np.array([np.nan], dtype)])


def every_exponent():
    """Floats: all signs and exponents times 32 mantissas, the ends and the middle among them."""
    mantissas = np.concatenate([np.arange(0, 2**23, 2**23 // 28), [1, 2, 2**23 - 2, 2**23 - 1]])
    heads = np.arange(2**9, dtype=np.uint32) << 23
    return (heads[:, None] | mantissas.astype(np.uint32)).ravel().view(np.float32)


def random_floats(rng, n):
    return rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)


def check(got, want, bound):
    """`got`, floats, is `want`, doubles, to `bound` ulp; NaN, infinities and signed zeros equal."""
    rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    zero = (got == 0) & (rounded == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]))
    ends = np.isinf(want)
    np.testing.assert_array_equal(got[ends], rounded[ends])
    # An overflow is an error like any other, measured from 2^128.
    finite = ~np.isnan(want) & ~ends
    got, want = got[finite].astype(float), want[finite]
    got = np.where(np.isinf(got), np.copysign(2.0**128, got), got)
    nearest = np.minimum(np.abs(want), np.finfo(np.float32).max).astype(np.float32)
    error = np.max(np.abs(got - want) / np.spacing(nearest).astype(float))
    assert error <= bound, f"{error:.2f} ulp"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UNARY)
def test_float_functions(name, rng):
    oracle, bound, _ = UNARY[name]
    x = np.concatenate([specials(np.float32), every_exponent(), random_floats(rng, 2**20)])
    if name in INTERVAL:
        x = np.concatenate([x, rng.uniform(*INTERVAL[name], 2**18).astype(np.float32)])
    check(run(name, x), oracle(x.astype(float)), bound)


def pairs(rng, n=2**17):
    """Pairs of floats: specials, random bits, and the places where powers are hard."""
    grid = np.meshgrid(specials(np.float32), specials(np.float32))
    normal = rng.standard_normal((2, n)).astype(np.float32)
    columns = [
        tuple(g.ravel() for g in grid),
        (random_floats(rng, n), random_floats(rng, n)),
        (np.exp(normal[0] * 10), normal[1] * 10),
        (1 + normal[0] * np.float32(1e-3), normal[1] * np.float32(1e4)),
        (normal[0] * 10, np.rint(normal[1] * 10)),
    ]
    return [np.concatenate(c).astype(np.float32) for c in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    ("name", "oracle", "bound"),
    [("power", np.power, 1), ("arctan2", np.arctan2, 1.5), ("hypot", np.hypot, 0.51)],
)
def test_float_functions_of_two(name, oracle, bound, rng):
    x, y = pairs(rng)
    check(run(name, x, y), oracle(x.astype(float), y.astype(float)), bound)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(name, dtype, rng):
    x, y = (a.astype(dtype) for a in pairs(rng, 2**14))
    want = getattr(np, name)(x, y)
    got = run(name, x, y)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def doubles(name, rng):
    """Doubles inside the function's domain: random bits, an interval, small ones."""
    low, high = INTERVAL.get(name, (-100, 100))
    bits = rng.integers(0, 2**64, 100, dtype=np.uint64).view(np.float64)
    x = np.concatenate([rng.uniform(low, high, 200), rng.standard_normal(50) * 1e-8])
    if name in ("sin", "cos", "tan", "cbrt", "arctan", "arcsinh"):
        x = np.concatenate([x, bits[np.isfinite(bits)]])
    if name in ("log", "log2", "log10", "rsqrt"):
        x = np.abs(np.concatenate([x, bits[np.isfinite(bits)]]))
    return x[x >= 1] if name == "arccosh" else x


def check_doubles(got, want, bound):
    """Each double of `got` is the mpmath number in `want` to `bound` ulp."""
    for g, w in zip(got, want, strict=True):
        unit = np.spacing(abs(float(w))) if abs(w) < mpmath.mpf(2) ** 1023 else 2.0**970
        assert abs(mpmath.mpf(float(g)) - w) <= bound * unit, (float(g), w)


@pytest.mark.parametrize("name", [n for n in UNARY if UNARY[n][2]])
def test_double_functions(name, rng):
    x = doubles(name, rng)
    with mpmath.workprec(160):
        want = [MP[name](mpmath.mpf(float(v))) for v in x]
        check_doubles(run(name, x), want, UNARY[name][2])


@pytest.mark.parametrize("name", [n for n in UNARY if n != "lgamma"])
def test_double_special_values(name):
    x = specials(np.float64)
    x = x[x != -np.nextafter(1, 0)]  # SciPy's digamma is wrong so near a pole
    got, want = run(name, x), UNARY[name][0](x)
    np.testing.assert_allclose(got, want, rtol=1e-13)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


@pytest.mark.parametrize(
    ("name", "function"),
    [("power", mpmath.power), ("arctan2", mpmath.atan2), ("hypot", mpmath.hypot)],
)
def test_double_functions_of_two(name, function, rng):
    x, y = np.exp(rng.uniform(-8, 8, 200)), rng.uniform(-80, 80, 200)
    near_one = 1 + rng.standard_normal(100) * 1e-6
    x, y = np.concatenate([x, near_one]), np.concatenate([y, rng.uniform(-1e7, 1e7, 100)])
    with mpmath.workprec(160):
        want = [
            function(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(x, y, strict=True)
        ]
        check_doubles(run(name, x, y), want, 2)
    a, b = (g.ravel() for g in np.meshgrid(specials(np.float64), specials(np.float64)))
    oracle = {"power": np.power, "arctan2": np.arctan2, "hypot": np.hypot}[name]
    got, want = run(name, a, b), oracle(a, b)
    np.testing.assert_allclose(got, want, rtol=1e-13)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


def test_digamma_of_doubles_and_the_zeros_of_lgamma(rng):
    x = rng.uniform(-5, 20, 300)
    np.testing.assert_allclose(run("digamma", x), special.digamma(x), rtol=1e-12, atol=1e-14)
    x = np.float32([1, 2])
    np.testing.assert_array_equal(run("lgamma", x), np.float32([0, 0]))


def test_hard_arguments_of_sine():
    # the double and the float that are nearest to multiples of π/2
    x = np.float64([6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**499])
    with mpmath.workprec(1500):
        check_doubles(run("sin", x), [mpmath.sin(mpmath.mpf(float(v))) for v in x], 1)
        check_doubles(run("cos", x), [mpmath.cos(mpmath.mpf(float(v))) for v in x], 1)
    x = np.float32([16367173 * 2.0**72, np.pi, 1e22, 3.4e38])
    check(run("sin", x), np.sin(x.astype(float)), 2)


def angles(dtype):
    """Arguments around the bound between the ways, multiples of π/4, and what is special."""
    bound, width = dtype(trig.NEAR[8 * np.dtype(dtype).itemsize]), np.spacing(dtype(1))
    near_bound = bound * (1 + np.arange(-9, 10) * width).astype(dtype)
    counts = np.concatenate([np.arange(1, 65), 2 ** np.arange(6, 34), [bound // 1, 3 * bound]])
    multiples = (counts * (np.pi / 4)).astype(dtype)
    close = [multiples, np.nextafter(multiples, dtype(0)), np.nextafter(multiples, dtype(np.inf))]
    x = np.concatenate([near_bound, *close, bound * dtype(1.5) ** np.arange(-90, 60)])
    x = x.astype(dtype)
    return np.concatenate([x, -x, specials(dtype)])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_around_the_bound_between_the_ways(name):
    oracle, bound, bound64 = UNARY[name]
    x = angles(np.float32)
    check(run(name, x), oracle(x.astype(float)), bound)
    x = angles(np.float64)
    x = x[np.isfinite(x)]
    with mpmath.workprec(1200):
        check_doubles(run(name, x), [MP[name](mpmath.mpf(float(v))) for v in x], bound64)
    zeros = run(name, np.float64([0.0, -0.0, 5e-324, -5e-324]))
    want = oracle(np.float64([0.0, -0.0, 5e-324, -5e-324]))
    np.testing.assert_array_equal(zeros.view(np.int64), want.view(np.int64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_value_depends_on_its_argument_alone(name, dtype, rng):
    x = angles(dtype)
    uint = f"u{np.dtype(dtype).itemsize}"
    alone = np.concatenate([run(name, x[i : i + 1]) for i in range(x.size)]).view(uint)
    np.testing.assert_array_equal(run(name, x).view(uint), alone)
    for _ in range(5):
        order = rng.permutation(x.size)[: rng.integers(1, x.size)]
        np.testing.assert_array_equal(run(name, x[order]).view(uint), alone[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_angles_on_any_processor(dtype):
    """Bit for bit what the host gives, with nothing but the oldest registers."""
    x = angles(dtype)
    kind = F32 if dtype == np.float32 else F64
    library = engine(Target.host().generic()).compile(loop_of("sin", kind))
    out = np.empty_like(x)
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64)
    kernel(library.address("kernel"))(x.ctypes.data, out.ctypes.data, x.size)
    np.testing.assert_array_equal(out, run("sin", x))


@pytest.mark.parametrize("kind", [F32, F64])
@pytest.mark.parametrize("name", sorted(functions.NAMES))
@pytest.mark.skipif(engine().target.vector_bits < 256, reason="narrow vectors don't always pay")
def test_loops_vectorize(name, kind):
    if kind is F64 and name in SCALAR_F64:
        pytest.skip("a call of libm")
    lanes = engine().target.vector_bits // (32 if kind is F32 else 64)
    text = compiled(name, kind).llvm_text
    # What computes in double may be given half as many lanes of float.
    widths = {int(w) for w in re.findall(r"store <(\d+) x ", text)}
    assert max(widths, default=0) >= lanes // 2
    # The rest of a loop asks element by element whether an argument is rare.
    assert not re.search(r"call (float|double) @(?!llvm|fg\.\w+\.beyond)", text)
    assert not re.search(r"call <.* @(?!llvm)", text)


def test_a_function_is_emitted_once_per_module():
    module = ir.Module()
    fn = ir.Function(module, ir.FunctionType(F32, [F32]), "f")
    b = IRBuilder(fn.append_basic_block())
    once = functions.emit(b, "tanh", [fn.args[0]])
    b.ret(functions.emit(b, "tanh", [once]))
    assert str(module).count("define internal") == 1


def test_bad_calls_name_the_function():
    module = ir.Module()
    fn = ir.Function(module, ir.FunctionType(F32, [F32, F64, I64]), "f")
    b = IRBuilder(fn.append_basic_block())
    with pytest.raises(KeyError, match="sine"):
        functions.emit(b, "sine", fn.args[:1])
    with pytest.raises(TypeError, match="power takes arguments all float or all double, got float"):
        functions.emit(b, "power", fn.args[:2])
    with pytest.raises(TypeError, match="exp takes .* got i64"):
        functions.emit(b, "exp", fn.args[2:])


def test_every_name_is_tested():
    assert {*UNARY, *BINARY} == functions.NAMES
