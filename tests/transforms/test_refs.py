"""Programs of mutable arrays: a table with the numbers that JAX gives, and what is refused."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ControlFlowError, DifferentiationError, RefError


def put(ref, index, value):
    ref[index] = value


def squared(x):
    ref = fg.new_ref(x)
    ref[...] = ref[...] * ref[...]
    return ref[...]


def filled(x):
    ref = fg.new_ref(fnp.zeros(4))

    def turn(i, carry):
        ref[i] = x * i
        ref[0] += 1.0
        return carry

    lax.fori_loop(1, 4, turn, 0)
    return fnp.sum(ref[...] ** 2)


def counted(ref, x):
    ref[...] += 1.0
    return x * 2.0


def noted(x, ref):
    y = x * x
    ref[...] = lax.stop_gradient(y)
    return y


@fg.custom_vjp
def stash(ref, x):
    return x


def stash_bwd(ref, g):
    ref[...] = g
    return None, g


stash.defvjp(lambda ref, x: (x, ref), stash_bwd)


def running(ref, xs):
    def turn(carry, x):
        ref[...] += x
        return carry, ref[...]

    return lax.scan(turn, 0.0, xs)[1]


def doubled_below(ref, limit):
    def turn(n):
        ref[...] *= 2.0
        return n + 1

    return lax.while_loop(lambda n: ref[...] < limit, turn, 0)


def chosen(ref, p):
    def yes():
        ref[...] = 1.0

    def no():
        ref[...] = ref[...] + 2.0

    lax.cond(p, yes, no)
    return ref[...]


def switched(ref, i):
    lax.switch(i, [lambda: None, lambda: put(ref, ..., 5.0), lambda: put(ref, ..., 7.0)])
    return ref[...]


def operand(ref, p):
    lax.cond(p, lambda r: put(r, ..., 1.0), lambda r: None, ref)
    return ref[...]


def rows(ref, xs):
    def turn(carry, ix):
        i, row = ix
        row[...] += i
        return carry, row[...] * 2.0

    return lax.scan(turn, 0, (xs, ref))[1]


def nested(ref, x):
    inner = fg.new_ref(x)

    @fg.jit
    def add(y):
        inner[...] += y
        ref[...] += y

    add(1.0), add(2.0)
    return inner[...]


def sines(x):
    ref = fg.new_ref(x)
    lax.fori_loop(0, 3, lambda i, c: (put(ref, ..., fnp.sin(ref[...])), c)[1], 0)
    return fg.freeze(ref)


def swapped(ref, x):
    before = fg.ref.swap(ref, 0, x)
    fg.ref.addupdate(ref, 1, before)
    return fg.ref.get(ref, slice(0, 2))


def pairs(x, y, out):
    out[...] = fnp.sum((x - y) ** 2)


def all_pairs(out, v):
    fg.vmap(fg.vmap(pairs, (0, None, 0)), (None, 0, 0))(v, v, out)


def remembered(x):
    return fg.checkpoint(lambda x: fnp.sin(squared(x)))(x)


def read_only(ref, x):
    return lax.scan(lambda c, x: (c + x * ref[...], None), 0.0, x)[0]


def powers(x, ref):
    def turn(c, _):
        c = c * x
        ref[...] = lax.stop_gradient(c)
        return c, None

    return lax.scan(turn, 1.0, None, length=3)[0]


R3 = [0.0, 1.0, 2.0]
# name, program of a Ref's first value and an argument, first value, argument, result, last value
PROGRAMS = [
    ("write", lambda r, x: put(r, ..., x), 0.0, 3.0, None, 3.0),
    ("index", lambda r, x: put(r, 1, x), R3, 5.0, None, [0.0, 5.0, 2.0]),
    ("negative", lambda r, x: r[-1], R3, 0.0, 2.0, R3),
    ("slice", lambda r, x: put(r, slice(0, 2), x), R3, [7.0, 8.0], None, [7.0, 8.0, 2.0]),
    ("array index", lambda r, x: r[np.array([2, 0])], R3, 0.0, [2.0, 0.0], R3),
    ("jit", fg.jit(lambda r, x: put(r, ..., r[...] + x)), 1.0, 2.0, None, 3.0),
    ("jit of jit", fg.jit(fg.jit(counted)), 1.0, 2.0, 4.0, 2.0),
    ("swap", swapped, R3, 9.0, [9.0, 1.0], [9.0, 1.0, 2.0]),
    ("swap in jit", fg.jit(swapped), R3, 9.0, [9.0, 1.0], [9.0, 1.0, 2.0]),
    ("scan", running, 1.0, R3, [1.0, 2.0, 4.0], 4.0),
    ("scan in jit", fg.jit(running), 1.0, R3, [1.0, 2.0, 4.0], 4.0),
    ("scan that reads", read_only, 2.0, R3, 6.0, 2.0),
    ("while", doubled_below, 1.0, 10.0, 4, 16.0),
    ("while in jit", fg.jit(doubled_below), 1.0, 10.0, 4, 16.0),
    ("cond, yes", chosen, 5.0, True, 1.0, 1.0),
    ("cond, no", fg.jit(chosen), 5.0, False, 7.0, 7.0),
    ("switch", switched, 1.0, 1, 5.0, 5.0),
    ("switch, in jit", fg.jit(switched), 1.0, 0, 1.0, 1.0),
    ("operand of cond", operand, 5.0, True, 1.0, 1.0),
    ("operand of cond in jit", fg.jit(operand), 5.0, False, 5.0, 5.0),
    ("rows of scan", rows, R3, [1.0, 2.0, 3.0], [2.0, 6.0, 10.0], [1.0, 3.0, 5.0]),
    ("rows in jit", fg.jit(rows), R3, [1.0, 2.0, 3.0], [2.0, 6.0, 10.0], [1.0, 3.0, 5.0]),
    ("nested", nested, 1.0, 10.0, 13.0, 4.0),
    ("nested in jit", fg.jit(nested), 1.0, 10.0, 13.0, 4.0),
    ("vmap of an argument", fg.vmap(counted), R3, R3, [0.0, 2.0, 4.0], [1.0, 2.0, 3.0]),
    ("jit of that", fg.jit(fg.vmap(counted)), R3, R3, [0.0, 2.0, 4.0], [1.0, 2.0, 3.0]),
    ("vmap that reads", lambda r, x: fg.vmap(lambda x: x + r[...])(x), 1.0, R3, [1, 2, 3], 1.0),
    ("vmap twice", all_pairs, np.zeros((2, 2)), [[0.0, 1.0], [2.0, 3.0]], None, [[0, 8], [8, 0]]),
    ("gradient noted", lambda r, x: fg.grad(noted)(x, r), 0.0, 3.0, 6.0, 9.0),
    ("in jit", lambda r, x: fg.jit(fg.grad(noted))(x, r), 0.0, 3.0, 6.0, 9.0),
    ("of jit", lambda r, x: fg.grad(fg.jit(noted))(x, r), 0.0, 3.0, 6.0, 9.0),
    ("through scan", lambda r, x: fg.grad(powers)(x, r), 0.0, 2.0, 12.0, 8.0),
    ("backwards", lambda r, x: fg.grad(lambda x: fnp.sin(stash(r, x)))(x), 1.0, 0.0, 1.0, 1.0),
    ("backwards in jit", lambda r, x: fg.jit(fg.grad(lambda x, r: 3.0 * stash(r, x)))(x, r), 1.0,
     0.0, 3.0, 3.0),
    ("jvp", lambda r, x: fg.jvp(lambda x: x * r[...], (x,), (1.0,))[1], 4.0, 2.0, 4.0, 4.0),
]  # fmt: skip

# name, pure function that makes its own Refs, argument, result
PURE = [
    ("value", squared, 3.0, 9.0),
    ("grad", fg.grad(squared), 3.0, 6.0),
    ("grad of grad", fg.grad(fg.grad(squared)), 3.0, 2.0),
    ("grad of jit", fg.grad(fg.jit(squared)), 3.0, 6.0),
    ("jit of grad", fg.jit(fg.grad(squared)), 3.0, 6.0),
    ("vmap", fg.vmap(squared), R3, [0.0, 1.0, 4.0]),
    ("grad of vmap", fg.grad(lambda x: fnp.sum(fg.vmap(squared)(x))), R3, [0.0, 2.0, 4.0]),
    ("vmap of grad", fg.vmap(fg.grad(filled)), [1.0, 2.0], [28.0, 56.0]),
    ("map", lambda x: lax.map(squared, x), R3, [0.0, 1.0, 4.0]),
    ("loop", filled, 2.0, 65.0),
    ("hessian", fg.hessian(filled), 2.0, 28.0),
    ("jvp", lambda x: fg.jvp(filled, (x,), (1.0,))[1], 2.0, 56.0),
    ("frozen", sines, 1.0, 0.67843047),
    ("grad through a loop", fg.grad(sines), 1.0, 0.2645083),
    ("checkpoint", fg.grad(remembered), 2.0, -2.6145744),
]


@pytest.mark.parametrize(("name", "program", "first", "x", "result", "last"), PROGRAMS)
def test_programs(name, program, first, x, result, last):
    ref = fg.new_ref(fnp.array(first, "float32"))
    x = fnp.array(x) if isinstance(x, list) else x
    got = program(ref, x)
    if result is None:
        assert got is None
    else:
        np.testing.assert_allclose(got, result, rtol=1e-6)
    np.testing.assert_allclose(ref[...], last, rtol=1e-6)


@pytest.mark.parametrize(("name", "fun", "x", "result"), PURE)
def test_pure_functions(name, fun, x, result):
    np.testing.assert_allclose(fun(fnp.array(x)), result, rtol=2e-6)


def test_a_program_reads_what_a_ref_holds_at_each_call():
    ref = fg.new_ref(1.0)

    @fg.jit
    def grow():
        ref[...] = ref[...] * 2.0

    for _ in range(20):
        grow()
    assert float(ref[...]) == 2.0**20
    assert grow.cache_info().misses == 1
    ref[...] = 3.0
    grow()
    assert float(ref[...]) == 6.0


def test_refs_of_one_type_share_a_program():
    add = fg.jit(lambda ref, x: counted(ref, x))
    a, b = fg.new_ref(1.0), fg.new_ref(5.0)
    add(a, 1.0), add(b, 1.0)
    assert (float(a[...]), float(b[...]), add.cache_info().misses) == (2.0, 6.0, 1)


def test_a_ref_of_a_transformation_is_captured_for_one_call():
    @fg.jit
    def outer(x):
        ref = fg.new_ref(x)

        def inner(y):
            ref[...] += y

        fg.jit(inner)(x)
        return ref[...]

    assert (float(outer(1.0)), float(outer(2.0))) == (2.0, 4.0)


def test_stages():
    ref = fg.new_ref(fnp.ones(3))
    step = fg.jit(lambda r: (put(r, ..., r[...] * 2.0), r[0])[1])
    compiled = step.lower(ref).compile()
    assert (float(compiled(ref)), float(compiled(ref))) == (2.0, 4.0)
    assert step.eval_shape(ref).shape == ()
    assert fg.eval_shape(lambda r: r[...], ref).shape == (3,)
    jaxpr, shape = fg.make_jaxpr(lambda r: put(r, ..., 2.0 * r[...]), return_shape=True)(ref)
    assert shape is None
    np.testing.assert_array_equal(jaxpr(fnp.ones(3))[0], 2.0 * np.ones(3))
    with fg.disable_jit():
        step(ref)
    np.testing.assert_array_equal(ref[...], 8.0 * np.ones(3))


def test_donation_and_checks_of_nan():
    ref = fg.new_ref(fnp.ones(3))
    f = fg.jit(lambda r, x: (put(r, ..., x), x + 1.0)[1], donate_argnums=1)
    f(ref, fnp.zeros(3))
    with fg.debug_nans(True):
        fg.jit(lambda r: put(r, ..., r[...] + 1.0))(ref)
    np.testing.assert_array_equal(ref[...], np.ones(3))


def test_under_shard_map_a_ref_is_read():
    ref, mesh = fg.new_ref(3.0), fg.make_mesh((2,), ("i",))
    spec = {"mesh": mesh, "in_specs": fg.P("i"), "out_specs": fg.P("i")}
    got = fg.shard_map(lambda x: x + ref[...], **spec)(fnp.arange(4.0))
    np.testing.assert_array_equal(got, np.arange(4.0) + 3.0)
    with pytest.raises(RefError, match=r"shard_map\(<lambda>\) writes to a Ref of f32\[\]"):
        fg.shard_map(lambda x: (put(ref, ..., 1.0), x)[1], **spec)(fnp.arange(4.0))


def test_what_is_returned_is_no_ref():
    ref = fg.new_ref(1.0)
    with pytest.raises(RefError, match=r"jit of <lambda>: the result\['a'\] is a Ref of f32\[\]"):
        fg.jit(lambda r: {"a": r})(ref)
    with pytest.raises(RefError, match=r"scan body of <lambda>: the result\[1\] is a Ref"):
        lax.scan(lambda c, x: (c, fg.new_ref(x)), 0.0, fnp.arange(3.0))
    with pytest.raises(RefError, match="return its value"):
        lax.cond(True, lambda: fg.new_ref(0.0), lambda: fg.new_ref(1.0))


def test_a_ref_has_one_name():
    ref = fg.new_ref(1.0)
    with pytest.raises(RefError, match=r"jit\(<lambda>\): a Ref of f32\[\] is given as a and as"):
        fg.jit(lambda a, b: a[...] + b[...])(ref, ref)
    with pytest.raises(RefError, match="is closed over and given as argument a"):
        fg.jit(lambda a: a[...] + ref[...])(ref)
    ref = fg.new_ref(fnp.ones(2))
    with pytest.raises(RefError, match="vmap of <lambda>: a Ref"):
        fg.vmap(lambda a, b: a[...] + b[...])(ref, ref)
    with pytest.raises(RefError, match="cond: a Ref"):
        lax.cond(True, lambda a, b: None, lambda a, b: None, ref, ref)


@pytest.mark.parametrize("around", [lambda f: f, fg.jit])
def test_values_of_transformations_stay_in_them(around):
    ref = fg.new_ref(0.0)
    write = around(lambda x: (put(ref, ..., x), x)[1])
    with pytest.raises(RefError, match=r"varies in vmap .* was made outside of it"):
        fg.vmap(write)(fnp.arange(3.0))
    with pytest.raises(RefError, match=r"varies in a differentiated function .*stop_gradient"):
        fg.grad(write)(1.0)
    with pytest.raises(RefError, match="varies in a differentiated function"):
        fg.jit(fg.grad(write))(1.0)
    assert float(ref[...]) == 0.0


def test_what_must_be_pure():
    ref = fg.new_ref(0.0)
    with pytest.raises(RefError, match=r"checkpoint\(<lambda>\) writes to a Ref"):
        fg.grad(fg.checkpoint(lambda x: (put(ref, ..., 1.0), x)[1]))(1.0)
    with pytest.raises(ControlFlowError, match="condition <lambda> writes to a Ref"):
        lax.while_loop(lambda c: (put(ref, ..., 1.0), c < 3)[1], lambda c: c + 1, 0)
    rule = fg.custom_jvp(lambda x: x)
    rule.defjvp(lambda primals, tangents: (primals[0], tangents[0] * ref[...]))
    with pytest.raises(RefError, match="a custom rule touches a Ref"):
        fg.grad(fg.jit(rule))(1.0)
    with pytest.raises(DifferentiationError, match="argument r is Ref"):
        fg.grad(lambda r: r[...])(ref)


def test_a_ref_ends_where_it_was_made():
    leaked = []

    @fg.jit
    def leak(x):
        leaked.append(fg.new_ref(x))
        return x

    leak(1.0)
    with pytest.raises(RefError, match=r"used outside of jit\(leak\), in which it was made \(at"):
        leaked[0][...]
    ref = fg.new_ref(1.0)
    for given in (fg.jit(fg.freeze), fg.jit(lambda r: fg.free_ref(r))):
        with pytest.raises(RefError, match="frozen only where it was made"):
            given(ref)
    with pytest.raises(RefError, match="frozen only where it was made"):
        fg.jit(lambda: fg.freeze(ref))()
    assert float(ref[...]) == 1.0


def test_making_refs():
    with pytest.raises(RefError, match=r"new_ref: init_val must be an array or a number, got \[1"):
        fg.new_ref([1.0])
    with pytest.raises(RefError, match="init_val must be an array or a number, got Ref"):
        fg.new_ref(fg.new_ref(1.0))
    with pytest.raises(RefError, match="memory_space"):
        fg.new_ref(1.0, memory_space="vmem")
    with pytest.raises(RefError, match="kind"):
        fg.new_ref(1.0, kind="other")
    with pytest.raises(RefError, match="freeze: ref must be a Ref, got 1.0"):
        fg.freeze(1.0)
    data = np.ones(2)
    ref = fg.new_ref(data)
    data[0] = 5.0
    assert (ref.dtype, float(ref[0])) == (np.float64, 1.0)
    assert fg.empty_ref(fg.ShapeDtypeStruct((2,), "int32"))[...].tolist() == [0, 0]


# ---- memory, and derivatives into Refs

LARGE = 1 << 20


@fg.jit
def set_one(ref, i, x):
    ref[i] = x


def test_a_program_writes_where_a_ref_holds_its_value():
    ref = fg.new_ref(fnp.zeros(LARGE))
    set_one(ref, 0, 1.0)
    memory = ref[...].value.ctypes.data
    for i in range(1, 4):
        set_one(ref, i, 1.0)
        assert ref[...].value.ctypes.data == memory
    assert float(fnp.sum(ref[...])) == 4.0


@pytest.mark.parametrize("hold", ["array", "numpy", "view", "another Ref", "operand"])
def test_what_others_hold_stays(hold):
    ref = fg.new_ref(fnp.zeros(LARGE))
    set_one(ref, 0, 1.0)
    other = fg.new_ref(ref[...]) if hold == "another Ref" else None
    held = {
        "array": lambda: ref[...],
        "numpy": lambda: np.asarray(ref[...]),
        "view": lambda: ref[...][:8],
        "another Ref": lambda: other,
        "operand": lambda: [ref[...]],
    }[hold]()
    if hold == "operand":
        old = fg.jit(lambda ref, x: ref.__setitem__(0, 5.0) or x[0] + ref[0])(ref, *held)
        assert float(old) == 6.0
        held = held[0]
    set_one(ref, 0, 7.0)
    set_one(ref, 1, 7.0)
    assert ref[...][:3].tolist() == [7.0, 7.0, 0.0]
    assert held[:3].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("call", [fg.pure_callback, fg.io_callback])
def test_a_users_function_that_fails_leaves_a_ref_as_it_was(call):
    def fails(x):
        raise ValueError("as it does")

    @fg.jit
    def step(ref):
        ref[...] = ref[...] * 2 + call(fails, fg.ShapeDtypeStruct((), "float32"), ref[0])

    ref = fg.new_ref(fnp.zeros(LARGE))
    set_one(ref, 0, 3.0)
    with pytest.raises(ValueError, match="as it does"):
        step(ref)
    assert ref[:2].tolist() == [3.0, 0.0]


def test_refs_that_change_places_and_old_values_as_results():
    a, b = fg.new_ref(fnp.zeros(LARGE)), fg.new_ref(fnp.ones(LARGE))

    @fg.jit
    def swap(a, b):
        old = a[...]
        a[...], b[...] = b[...], old
        return old

    for i in range(3):
        old = swap(a, b)
        assert (float(old[5]), float(a[5]), float(b[5])) == (i % 2, (i + 1) % 2, i % 2)


@fg.custom_vjp
def watched(x, ref):
    return x


watched.defvjp(
    lambda x, ref: (x, ref),
    lambda ref, ct: (ref.__setitem__(..., ct), (ct, None))[1],
)


@pytest.mark.parametrize("form", ["captured", "argument", "twice"])
def test_rules_write_to_refs_under_grad_of_jit(form):
    ref = fg.new_ref(fnp.float32(0))
    f = lambda x, ref: fnp.sin(watched(x * 2, ref))
    if form == "captured":
        got = fg.grad(fg.jit(lambda x: f(x, ref)))(1.0)
    elif form == "argument":
        got = fg.grad(fg.jit(f))(1.0, ref)
    else:
        got = fg.jit(fg.grad(fg.jit(fg.jit(f))))(1.0, ref)
    np.testing.assert_allclose(ref[...], np.cos(2.0), rtol=1e-6)
    np.testing.assert_allclose(got, 2 * np.cos(2.0), rtol=1e-6)


def test_cotangents_are_added_to_refs():
    x, y = fnp.arange(3.0), {"a": fnp.ones(3), "b": fnp.float32(2)}
    f = lambda x, y: fnp.sum(x * y["a"]) * y["b"]
    total, part = fg.new_ref(fnp.ones(3)), fg.new_ref(fnp.float32(0))

    @fg.jit
    def step(x, y, total, part):
        _, f_vjp = fg.vjp(f, x, y)
        return f_vjp.with_refs(total, {"a": None, "b": part})(1.0)

    first, second = step(x, y, total, part)
    assert first is None
    assert second["b"] is None
    np.testing.assert_allclose(second["a"], x * 2)
    step(x, y, total, part)
    np.testing.assert_allclose(total[...], 1 + 2 * 2 * np.ones(3))
    np.testing.assert_allclose(part[...], 6.0)
    _, f_vjp = fg.vjp(f, x, y)
    assert fg.tree.structure(f_vjp) == fg.tree.structure(fg.tree.map(lambda a: a, f_vjp))
    with pytest.raises(TypeError, match="with_refs: need an entry a primal, 2, got 1"):
        f_vjp.with_refs(total)
    with pytest.raises(RefError, match=r"a Ref of f32\[3\] can't hold the cotangent of .* f32\[\]"):
        f_vjp.with_refs(None, {"a": None, "b": total})
    with pytest.raises(RefError, match="with_refs: ref must be a Ref, got 3"):
        f_vjp.with_refs(3, None)


def test_parts():
    ref = fg.new_ref(fnp.zeros((2, 3)))
    row = ref.at[1]
    row[...] = fnp.arange(3.0)
    row.at[1:][0] = 9.0
    assert ref[...].tolist() == [[0.0, 0.0, 0.0], [0.0, 9.0, 2.0]]
    assert row[2] == 2.0
    assert repr(fg.new_ref(1).at[...]) == "Ref(1, dtype=int32).at[Ellipsis]"
    fg.jit(lambda ref: ref.at[0].__setitem__(..., 4.0))(ref)
    assert ref[0].tolist() == [4.0] * 3
