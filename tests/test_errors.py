"""Bad input: the class and the words of each error a user meets first."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, image, lax, random

X = np.array([1.0, 2.0, 3.0], np.float32)


def fails(error, *words):
    """The body must raise `error`, whose text has all of the words in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def test_every_error_is_one_of_pythons_too():
    ours = [c for n, c in vars(errors).items() if isinstance(c, type) and n[0] != "_"]
    assert len(ours) > 15
    for c in ours:
        assert issubclass(c, errors.FuncgradError)
        assert c.__doc__
        if c is not errors.FuncgradError:
            builtin = (TypeError, ValueError, RuntimeError, IndexError, FloatingPointError)
            assert issubclass(c, builtin)


# ---- shapes and dtypes


def test_shape_mismatch_names_both_arguments():
    with fails(TypeError, "add", r"\(3,\)", r"\(2,\)"):
        fnp.ones(3) + fnp.ones(2)
    with fails(errors.ShapeError, "matmul", r"\(2, 3\)|f32\[2,3\]", r"\(4, 2\)|f32\[4,2\]"):
        fnp.ones((2, 3)) @ fnp.ones((4, 2))
    with fails(errors.ShapeError, "add", r"f32\[3\]", r"f32\[2\]"):
        lax.add(fnp.ones(3), fnp.ones(2))


def test_shape_mismatch_inside_jit_and_grad():
    for transform in (fg.jit, fg.grad, fg.make_jaxpr):
        with fails(errors.ShapeError, r"multiply|mul", r"\(3,\)", r"\(2,\)"):
            transform(lambda x: fnp.sum(x * fnp.ones(2)))(X)


def test_reshape_says_what_it_got():
    with fails(TypeError, "reshape", "3", r"\(2, 2\)"):
        fnp.reshape(X, (2, 2))


def test_wrong_dtype():
    with fails(errors.DTypeError, "sin", "i32|int32"):
        lax.sin(fnp.arange(3))
    with fails(errors.DTypeError, "mul", r"one dtype.*f32\[3\].*i32\[3\]"):
        lax.mul(fnp.ones(3), fnp.arange(3))
    with fails(errors.DTypeError, "'float31' is not a dtype"):
        fnp.zeros(3, "float31")
    with fails(errors.DTypeError, "not supported"):
        fnp.asarray(np.array(["a"]))
    with fails(errors.TypePromotionError, "float8_e4m3fn", "astype"):
        fnp.ones(2, "float8_e4m3fn") + fnp.ones(2)


def test_lists_are_no_operands():
    with fails(TypeError, "list", r"fnp\.array"):
        fnp.ones(3) + [1, 2, 3]
    with fails(TypeError, "sin", "list", r"fnp\.array"):
        fnp.sin([1.0, 2.0])


# ---- derivatives


def test_grad_of_a_vector():
    with fails(errors.DifferentiationError, "grad of <lambda>", "one scalar", r"f32\[3\]",
               "sum or average", "jacrev"):  # fmt: skip
        fg.grad(lambda x: x * 2)(X)
    with fails(errors.DifferentiationError, "one scalar", "has_aux=True"):
        fg.grad(lambda x: (fnp.sum(x), x))(X)
    with fails(errors.DifferentiationError, "must return one scalar"):
        fg.grad(lambda x: {"loss": fnp.sum(x)})(X)


def test_grad_of_integers():
    def loss(params, n):
        return fnp.sum(params["w"]) * n

    with fails(
        errors.DifferentiationError, r"argument params\['w'\] is i32\[3\]", "allow_int=True"
    ):
        fg.grad(loss)({"w": np.arange(3, dtype="int32")}, 2)
    with fails(errors.DifferentiationError, r"argument n is i32\[\]", "convert it to float"):
        fg.grad(loss, argnums=1)({"w": X}, 2)
    with fails(errors.DifferentiationError, "must return a real floating-point scalar", r"i32\[\]"):
        fg.grad(lambda x: fnp.argmax(x))(X)


def test_grad_of_complex():
    with fails(
        errors.DifferentiationError, "real floating-point scalar", "holomorphic=True", "c64"
    ):
        fg.grad(lambda z: z * 1j)(1.0)
    with fails(errors.DifferentiationError, r"argument x is f32\[\]", "inputs with complex dtype"):
        fg.grad(lambda x: x, holomorphic=True)(1.0)


def test_grad_of_a_missing_argument():
    with fails(TypeError, "grad of <lambda>", "argnums=1 requires at least 2", "got only 1"):
        fg.grad(lambda x: x, argnums=1)(1.0)
    with fails(TypeError, "grad: the first argument must be a function, got 3"):
        fg.grad(3)


def test_has_aux_without_aux():
    with fails(TypeError, "has_aux=True", r"pair \(value, aux\)"):
        fg.grad(lambda x: x * 2, has_aux=True)(1.0)


def test_operations_without_a_derivative():
    with fails(
        errors.DifferentiationError, "while has no transpose rule", "fori_loop", "max_steps"
    ):
        fg.grad(lambda x: lax.while_loop(lambda v: v < 9, lambda v: v * v, x))(2.0)
    with fails(errors.DifferentiationError, "pure_callback", "Python code", "custom_jvp"):
        fg.grad(lambda x: fg.pure_callback(np.sin, fg.ShapeDtypeStruct((), "float32"), x))(1.0)


def test_tree_mismatch_names_the_path():
    with fails(errors.TreeError, r"differ at \[0\]", "jvp: primals", "tangents lacks 'b'"):
        fg.jvp(lambda p: p["a"], ({"a": 1.0, "b": 2.0},), ({"a": 1.0},))
    with fails(ValueError, r"\['w'\]\[1\]"):
        fg.tree.map(lambda x, y: x, {"w": [1, (2, 3)]}, {"w": [1, [2, 3]]})


# ---- vmap


def test_vmap_sizes():
    with fails(errors.BatchingError, "vmap of f", "x has size 3 at axis 0",
               r"p\['w'\] has size 2 at axis 1"):  # fmt: skip

        def f(x, p):
            return x

        fg.vmap(f, in_axes=(0, {"w": 1}))(X, {"w": np.ones((4, 2))})


def test_vmap_of_scalars_and_names():
    with fails(errors.BatchingError, r"axis 0 of argument x, which is f32\[\]", "use None"):
        fg.vmap(lambda x: x)(1.0)
    with fails(NameError, "no axis is named 'rows'", "named axes: 'lanes'", "axis_name"):
        fg.vmap(lambda x: lax.psum(x, "rows"), axis_name="lanes")(X)


# ---- tracers

kept = {}


def test_leaked_tracers_name_variable_and_line():
    def f(x):
        kept["y"] = x * 2.0
        return x

    fg.jit(f)(X)
    with fails(errors.LeakedTracerError, r"the variable `kept\['y'\]` holds a tracer f32\[3\]",
               r"jit\(f\)", r"created on line .*test_errors\.py:\d+", r"kept\[\"y\"\] = x \* 2\.0",
               r"used at .*test_errors\.py:\d+", r"kept\[\"y\"\] \+ 1", "Return"):  # fmt: skip
        kept["y"] + 1


def test_leaks_from_grad_and_vmap():
    class Model:
        pass

    model = Model()

    def f(x):
        model.state = x
        return fnp.sum(x)

    for transform in (fg.grad, fg.vmap):
        transform(f)(X)
        with fails(RuntimeError, r"`model\.state` holds a tracer", "has ended"):
            fnp.sin(model.state)


def test_if_on_a_tracer():
    @fg.jit
    def relu(x, scale):
        if x > 0:
            return x * scale
        return 0.0

    with fails(errors.TracerBoolConversionError, "True or False", r"bool\[\] is unknown",
               r"depends on the argument x of jit\(relu\)", r"test_errors\.py:\d+", "if x > 0:",
               "fnp.where", "lax.cond", "static_argnames"):  # fmt: skip
        relu(1.0, 2.0)


def test_loops_and_boolean_operators_on_tracers():
    for f in (
        lambda x: [x for _ in range(3) if x > 0],
        lambda x: (x > 0) and (x < 1),
        lambda x: not (x > 0),
        lambda x: max(x, 1.0),
    ):
        with fails(errors.TracerBoolConversionError, "argument x"):
            fg.jit(f)(1.0)


def test_int_and_range_of_a_tracer():
    @fg.jit
    def f(x, n):
        return x * int(n)

    with fails(errors.TracerIntegerConversionError, r"int\(\)", "argument n", "static_argnums"):
        f(1.0, 3)
    with fails(errors.TracerIntegerConversionError, r"range\(\)", "argument n"):
        fg.jit(lambda n: sum(range(n)))(3)
    with fails(errors.ConcretizationError, r"float\(\)", "argument x"):
        fg.jit(lambda x: float(x))(1.0)


def test_shapes_that_depend_on_tracers():
    with fails(TypeError, "argument n", "static"):
        fg.jit(lambda n: fnp.zeros(n))(3)
    with fails(errors.ConcretizationError, "argument x"):
        fg.jit(lambda x: x[x > 0])(X)
    with fails(errors.ConcretizationError, "size="):
        fg.jit(lambda x: fnp.nonzero(x))(X)


def test_numpy_of_a_tracer():
    with fails(errors.TracerArrayConversionError, "NumPy was given", r"argument x of jit",
               r"test_errors\.py:\d+", r"np\.cos\(x\)", "funcgrad.numpy in place"):  # fmt: skip
        fg.jit(lambda x: np.cos(x))(X)
    with fails(errors.TracerArrayConversionError, "can't follow"):
        fg.grad(lambda x: np.asarray(x).sum())(X)


# ---- jit


def test_tracers_as_static_arguments():
    inner = fg.jit(lambda x, n: x * n, static_argnums=1)
    with fails(TypeError, "static argument n is a tracer", "known while tracing"):
        fg.jit(lambda x: inner(x, x))(1.0)
    with fails(TypeError, "static argument n is a tracer"):
        fg.grad(lambda x: inner(1.0, x))(1.0)


def test_unhashable_static_arguments():
    f = fg.jit(lambda x, sizes: x, static_argnames="sizes")
    with fails(TypeError, "static argument sizes must be hashable", r"\[1, 2\]", "tuple"):
        f(1.0, sizes=[1, 2])
    with fails(TypeError, "static argument sizes must be hashable"):
        f(1.0, fnp.ones(2))


def test_arguments_that_are_no_arrays():
    with fails(TypeError, "jit of <lambda>", r"argument config\['mode'\]", "'fast'", "static"):
        fg.jit(lambda config: config["x"])({"x": 1.0, "mode": "fast"})
    with fails(TypeError, "the result", "must be an array or a number", "'text'"):
        fg.jit(lambda x: "text")(1.0)
    with fails(TypeError, r"the result\['a'\]", "object"):
        fg.jit(lambda x: {"a": object()})(1.0)


def test_types_in_place_of_arrays():
    struct = fg.ShapeDtypeStruct((3,), "float32")
    with fails(TypeError, "has no value", r"ShapeDtypeStruct\(shape=\(3,\)"):
        fg.jit(lambda x: x * 2)(struct)


def test_missing_and_surplus_arguments():
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fg.jit(lambda x, y: x)(1.0)
    with pytest.raises(TypeError, match="positional argument"):
        fg.grad(lambda x: x)(1.0, 2.0)


def test_donated_arrays():
    update = fg.jit(lambda state, g: state - g, donate_argnums=0)
    state = fnp.ones(3)
    update(state, X)
    with fails(errors.DonatedBufferError, r"f32\[3\] is gone", "argument state was donated to jit",
               "Keep the function's result"):  # fmt: skip
        update(state, X)
    assert "deleted" in repr(state)


# ---- indexing


def test_out_of_bounds():
    x = fnp.arange(3.0)
    for bad in (3, -4):
        with fails(IndexError, str(bad), "3"):
            x[bad]
    with fails(errors.OutOfBoundsError, "5", "axis 1"):
        fnp.ones((2, 3))[0, 5]
    with fails(IndexError, "7"):
        x[fnp.asarray([0, 7])]
    with fails(IndexError, "3"):
        x.at[3].set(0.0)
    with fails(IndexError, "Too many"):
        x[0, 0]


def test_assignment_to_an_item():
    weights = fnp.ones(3)
    with fails(TypeError, "immutable", r"weights = weights\.at\[0\]\.set\(5\.0\)"):
        weights[0] = 5.0


# ---- rules of users


def test_custom_rules_of_wrong_types():
    f = fg.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, None), lambda _, g: g)
    with fails(errors.CustomRuleError, "backward rule", "tuple of 2 cotangents", "one array f32"):
        fg.grad(f)(1.0, 2.0)
    f.defvjp(lambda x, y: (x * y, None), lambda _, g: (g, fnp.ones(2)))
    with fails(
        errors.CustomRuleError, "backward rule", r"cotangent 1 must be f32\[\]", r"f32\[2\]"
    ):
        fg.grad(f)(1.0, 2.0)
    g = fg.custom_jvp(lambda x: {"y": x})
    g.defjvp(lambda primals, tangents: ({"y": primals[0]}, tangents[0]))
    with fails(errors.CustomRuleError, "jvp rule", "structure of the result"):
        fg.jvp(g, (1.0,), (1.0,))


def test_custom_rules_that_close_over_traced_values():
    def loss(w):
        f = fg.custom_vjp(lambda x: x * w)
        f.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
        return f(w)

    with fails(errors.DifferentiationError, "closes over", "closure_convert"):
        fg.grad(loss)(1.0)


# ---- control flow


def test_scan_carry_that_changes():
    def step(carry, x):
        return {"h": carry["h"].astype("float16"), "n": carry["n"]}, x

    with fails(errors.ControlFlowError, "scan", "keep its types",
               r"carry\['h'\] enters as f32\[3\] and leaves as f16\[3\]", "astype"):  # fmt: skip
        lax.scan(step, {"h": X, "n": 0}, X)
    with fails(errors.ControlFlowError, "keep its structure"):
        lax.scan(lambda c, x: ((c, x), x), 0.0, X)


def test_branches_that_differ():
    with fails(
        errors.ControlFlowError, "cond", r"result 0 is f32\[3\] from left", r"f32\[2\] from right"
    ):

        def left(x):
            return x

        def right(x):
            return x[:2]

        lax.cond(True, left, right, X)
    with fails(errors.ControlFlowError, "one structure, but left returns", "<lambda> returns"):
        lax.cond(True, left, lambda x: (x, x), X)


def test_conditions_that_are_arrays():
    with fails(errors.ControlFlowError, "predicate must be a scalar", r"bool\[3\]", "where"):
        lax.cond(X > 0, fnp.sin, fnp.cos, X)
    with fails(errors.ControlFlowError, "condition", "boolean"):
        lax.while_loop(lambda x: x, lambda x: x, 1.0)


# ---- callbacks and NaN


def test_callbacks_of_wrong_results():
    struct = fg.ShapeDtypeStruct((3,), "float32")
    for transform in (lambda f: f, fg.jit):
        with fails(errors.ShapeError, "pure_callback", r"must return f32\[3\]", r"float64\[2\]"):
            transform(lambda x: fg.pure_callback(lambda v: np.ones(2), struct, x))(X)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        fg.jit,
        fg.grad,
        lambda f: fg.jit(fg.value_and_grad(f)),
        lambda f: fg.grad(fg.jit(f)),
        lambda f: lambda x: fg.vmap(fg.grad(fg.checkpoint(f)))(x * fnp.ones(2)),
        lambda f: lambda x: lax.scan(lambda c, v: (c + f(v), v), 0.0, x * fnp.ones(2)),
        lambda f: lambda x: lax.cond(True, f, lambda v: v, x),
        lambda f: fg.grad(lambda x: lax.fori_loop(0, 2, lambda i, c: c + f(x), 0.0)),
    ],
    ids=[
        "eager",
        "jit",
        "grad",
        "jit grad",
        "grad jit",
        "vmap grad checkpoint",
        "scan",
        "cond",
        "grad loop",
    ],
)
def test_debug_nans_names_operation_and_line(transform):
    def loss(x):
        y = x - 2.0
        return fnp.sum(fnp.log(y))

    words = (r"f32\[", r"test_errors\.py:\d+", r"return fnp\.sum\(fnp\.log\(y\)\)")
    with fg.debug_nans(), fails(FloatingPointError, "log produced NaN", *words):
        transform(loss)(1.0)
    transform(loss)(1.0)


def test_debug_nans_in_the_backward_pass():
    def f(x):
        return fnp.sqrt(x) * 0.0

    for g in (fg.grad(f), fg.jit(fg.grad(f)), fg.grad(fg.jit(f))):
        with fg.debug_nans(), fails(errors.NonFiniteError, "mul|div", r"return fnp\.sqrt\(x\)"):
            g(0.0)
    with fg.debug_nans():
        assert float(f(0.0)) == 0.0
        assert np.isnan(fnp.asarray(np.nan) + 1.0), "NaN in, NaN out"


def test_default_dtype_of_nothing():
    with fails(errors.DTypeError, "default_dtype", "complex64"), fg.default_dtype("complex64"):
        pass


def test_partial_and_wrapped_functions_are_named():
    named = functools.partial(lambda x, k: x * k, k=2)
    with fails(errors.DifferentiationError, "grad of <lambda>"):
        fg.grad(named)(X)


def test_what_public_modules_are_written_with_is_no_function_of_theirs():
    image.resize(np.ones((2, 2), np.float32), (4, 4), "nearest")  # is loaded, and imports shape_of
    with fails(TypeError, "^random.normal: shape must be integers"):
        random.normal(random.key(0), (2.5,))
    with fails(TypeError, "^zeros: shape must be integers"):
        fnp.zeros((2.5,))
