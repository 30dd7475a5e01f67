"""Programs on a mesh of Explicit axes and how JAX cuts their results, for both libraries.

`python explicit_programs.py` prints what JAX (of 8 devices) makes of them, as JSON.
"""

import json
import os
import types

SHAPE, NAMES = (4, 2), ("x", "y")
# Arrays of 8 by 8.
CUTS = {"a": ("x",), "b": (None, "y"), "c": (("x", "y"),), "d": ("y",), "e": (None, "x"), "w": ()}

# By name: the program, of NumPy's module and the arrays, and its result's spec (None: an error).
PROGRAMS = {
    "elementwise": (lambda np, v: np.exp(v.a) * 2, ("x",)),
    "with whole": (lambda np, v: v.a + v.w, ("x",)),
    "different axes": (lambda np, v: v.a + v.b, ("x", "y")),
    "one axis, other cuts": (lambda np, v: v.a + v.d, None),
    "one axis, longer cuts": (lambda np, v: v.a + v.c, None),
    "one mesh axis, two axes": (lambda np, v: v.a + v.e, None),
    "where": (lambda np, v: np.where(v.a > 0, v.a, 0), ("x",)),
    "transpose": (lambda np, v: v.a.T, (None, "x")),
    "sum": (lambda np, v: v.a.sum(1), ("x",)),
    "sum over the cut": (lambda np, v: v.a.sum(0), ()),
    "max": (lambda np, v: v.b.max(0), ("y",)),
    "var": (lambda np, v: np.var(v.a, 1), ("x",)),
    "argmax": (lambda np, v: np.argmax(v.a, 0), ()),
    "product": (lambda np, v: v.a @ v.b, ("x", "y")),
    "product with whole": (lambda np, v: v.a @ v.w, ("x",)),
    "product over one's cut": (lambda np, v: v.w @ v.a, ()),
    "product of weights that are cut": (lambda np, v: v.a @ v.c, ("x",)),
    "product over both's cuts": (lambda np, v: v.a.T @ v.a, None),
    "product cut twice": (lambda np, v: v.a @ v.a.T, None),
    "batched product": (lambda np, v: np.einsum("bi,bi->b", v.a, v.a), ("x",)),
    "broadcast": (lambda np, v: np.broadcast_to(v.a.sum(1), (3, 8)), (None, "x")),
    "outer sum": (lambda np, v: v.a.sum(1)[:, None] + v.b.sum(0), ("x", "y")),
    "new axis": (lambda np, v: v.a[None], (None, "x")),
    "squeeze": (lambda np, v: v.a.reshape(8, 1, 8).squeeze(1), ("x",)),
    "merge": (lambda np, v: v.a.reshape(64), ("x",)),
    "merge, cut behind": (lambda np, v: v.b.reshape(64), None),
    "split": (lambda np, v: v.a.reshape(4, 2, 8), ("x",)),
    "split too small": (lambda np, v: v.a.reshape(2, 4, 8), None),
    "split another axis": (lambda np, v: v.a.reshape(8, 2, 4), ("x",)),
    "slice": (lambda np, v: v.a[:, :2], ("x",)),
    "slice of the cut": (lambda np, v: v.a[:4], ("x",)),
    "slice too short": (lambda np, v: v.a[:3], None),
    "reverse": (lambda np, v: v.a[::-1], ("x",)),
    "pad too long": (lambda np, v: np.pad(v.a, 1), None),
    "concatenate": (lambda np, v: np.concatenate([v.a, v.a], 1), ("x",)),
    "concatenate along the cut": (lambda np, v: np.concatenate([v.a, v.a]), ("x",)),
    "sort": (lambda np, v: np.sort(v.a, axis=1), ("x",)),
    "sort along the cut": (lambda np, v: np.sort(v.a, axis=0), None),
    "cumsum": (lambda np, v: np.cumsum(v.a, 1), ("x",)),
    "cumsum along the cut": (lambda np, v: np.cumsum(v.a, 0), None),
    "made anew": (lambda np, v: np.zeros((8, 8)) + np.arange(8), ()),
}


def of_jax() -> dict[str, list | None]:
    """The specs that JAX gives the results, None for an error."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax
    from jax.sharding import AxisType, PartitionSpec

    found = {}
    mesh = jax.make_mesh(SHAPE, NAMES, (AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        whole = jax.numpy.ones((8, 8))
        arrays = {k: jax.sharding.reshard(whole, PartitionSpec(*c)) for k, c in CUTS.items()}
        for name, (program, _) in PROGRAMS.items():
            specs = []

            def f(arrays, program=program, specs=specs):
                out = program(jax.numpy, types.SimpleNamespace(**arrays))
                specs.append(list(jax.typeof(out).sharding.spec))

            try:
                jax.jit(f).trace(arrays)
                found[name] = specs[0]
            except Exception as e:
                if type(e).__name__ != "ShardingTypeError":
                    raise
                found[name] = None
    return found


if __name__ == "__main__":
    print(json.dumps(of_jax()))
