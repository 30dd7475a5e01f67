"""Larger programs that models are made of, for ONNX Runtime: see `programs`."""

import sys
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, random
from tests.export.onnx.programs import Program, _gpt, normal


def gpt_with_cache():
    _, cfg, params = _gpt()
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
    try:
        import serve_gpt
    finally:
        sys.path.pop(0)
    step = lambda params, cache, tokens, places: serve_gpt.decode(
        params, cache, tokens, places, cfg
    )

    def state(slots, place):
        cache = fg.tree.map(lambda x: normal(*x.shape), serve_gpt.empty_cache(cfg, slots))
        return cache, fnp.arange(slots) + 1, fnp.full(slots, place, "int32")

    names = [f"cache.{i}.{k}" for i in range(cfg.layers) for k in "kv"]
    names = [n.replace("cache.", "cache[").replace(".k", "]['k']").replace(".v", "]['v']")
             for n in names]  # fmt: skip
    axes = {"tokens": 0, "places": 0, **dict.fromkeys(names, 0)}
    return Program(step, (params, *state(2, 3)), (0,), {"slots": axes}, (state(3, 5),))


def resnet():
    kernel = lambda seed: normal(3, 3, 8, 8, seed=seed) / 8
    params = [
        {"a": kernel(i), "b": kernel(9 + i), "scale": normal(8, seed=i), "shift": normal(8, seed=i)}
        for i in range(3)
    ]
    numbers = ("NHWC", "HWIO", "NHWC")

    def run(params, x):
        for p in params:
            h = lax.conv_general_dilated(x, p["a"], (1, 1), "SAME", dimension_numbers=numbers)
            h = nn.relu(h * p["scale"] + p["shift"])
            x = x + lax.conv_general_dilated(h, p["b"], (1, 1), "SAME", dimension_numbers=numbers)
        return fnp.mean(x, axis=(1, 2))

    x = normal(2, 6, 6, 8)
    return Program(run, (params, x), (0,), {"n": {"x": 0}}, ((normal(3, 6, 6, 8, seed=1),),))


def dlrm():
    params = {"tables": [normal(20, 4, seed=i) for i in range(3)], "bottom": normal(5, 4, seed=7),
              "top": normal(10, 1, seed=8)}  # fmt: skip

    def run(params, dense, ids):
        rows = [nn.relu(dense @ params["bottom"])]
        rows += [t[ids[:, i]] for i, t in enumerate(params["tables"])]
        x = fnp.stack(rows, 1)
        pairs = fnp.einsum("bik,bjk->bij", x, x)
        i, j = np.tril_indices(4, -1)
        return nn.sigmoid(fnp.concatenate([rows[0], pairs[:, i, j]], 1) @ params["top"])

    ids = lambda n: fnp.asarray(np.random.default_rng(n).integers(0, 20, (n, 3)), "int32")
    args = (params, normal(4, 5), ids(4))
    return Program(run, args, (0,), {"n": {"dense": 0, "ids": 0}}, ((normal(7, 5), ids(7)),))


def kalman_filter():
    a = np.array([[1, 0.1], [0, 1]], "f4")
    h, q, r = np.array([[1, 0]], "f4"), 0.01 * np.eye(2, dtype="f4"), np.array([[0.1]], "f4")

    def run(zs):
        def turn(state, z):
            x, p = state
            x, p = a @ x, a @ p @ a.T + q
            gain = fnp.linalg.solve(h @ p @ h.T + r, h @ p).T
            x = x + gain @ (z - h @ x)
            p = (fnp.eye(2) - gain @ h) @ p
            return (x, p), x

        return lax.scan(turn, (fnp.zeros(2), fnp.eye(2)), zs)

    return Program(run, (normal(9, 1),), (), {"t": {"zs": 0}}, ((normal(4, 1, seed=1),),))


def factors():
    def run(a, b):
        s = a @ a.T + fnp.eye(5)
        q, r = fnp.linalg.qr(a)
        return fnp.linalg.solve(s, b), fnp.linalg.cholesky(s), fnp.abs(r), q @ r

    return Program(run, (normal(5, 5), normal(5, 2, seed=1)), (), {"k": {"b": 1}},
                   ((normal(5, 5), normal(5, 6, seed=2)),))  # fmt: skip


def principal_components():
    def run(x):
        x = x - x.mean(0)
        w, v = fnp.linalg.eigh(x.T @ x / len(x))
        return w, fnp.abs(v), fnp.linalg.svd(x, compute_uv=False)

    return Program(run, (normal(12, 4),), (), {"n": {"x": 0}}, ((normal(21, 4, seed=1),),))


def normal_likelihood_gradient():
    def loss(low, x):
        s = low @ low.T + fnp.eye(3)
        return 0.5 * fnp.sum(x * fnp.linalg.solve(s, x.T).T) + fnp.linalg.slogdet(s)[1]

    return Program(fg.grad(loss), (normal(3, 3), normal(6, 3, seed=1)), (), {"n": {"x": 0}},
                   ((normal(3, 3), normal(9, 3, seed=2)),))  # fmt: skip


def power_iteration():
    def run(a, v):
        def turn(state):
            v, _, i = state
            w = a @ v
            w = w / fnp.sqrt(fnp.sum(w * w))
            return w, fnp.max(fnp.abs(w - v)), i + 1

        go = lambda state: (state[1] > 1e-6) & (state[2] < 200)
        v, _, _ = lax.while_loop(go, turn, (v, fnp.float32(1), 0))
        return v @ a @ v

    a = normal(6, 6)
    return Program(run, (a @ a.T + 6 * fnp.eye(6), normal(6, seed=1)))


def autoencoder():
    params = {"down": normal(3, 3, 1, 4) / 3, "up": normal(3, 3, 1, 4, seed=1) / 3}
    numbers = ("NHWC", "HWIO", "NHWC")

    def run(params, x):
        h = lax.conv_general_dilated(x, params["down"], (2, 2), "SAME", dimension_numbers=numbers)
        h = nn.silu(h)
        y = lax.conv_transpose(h, fnp.swapaxes(params["up"], 2, 3), (2, 2), "SAME",
                               dimension_numbers=numbers)  # fmt: skip
        return nn.sigmoid(y)

    return Program(run, (params, normal(2, 8, 8, 1)), (0,), {"n": {"x": 0}},
                   ((normal(5, 8, 8, 1, seed=2),),))  # fmt: skip


def diffusion_step():
    def run(params, key, x, t):
        noise = random.normal(key, x.shape)
        level = fnp.cos(t * 0.5 * np.pi)[:, None] ** 2
        noisy = fnp.sqrt(level) * x + fnp.sqrt(1 - level) * noise
        told = nn.gelu(fnp.concatenate([noisy, t[:, None]], 1) @ params["a"]) @ params["b"]
        return fnp.mean((told - noise) ** 2), noisy

    params = {"a": normal(5, 16), "b": normal(16, 4, seed=1)}
    t = fnp.linspace(0.1, 0.9, 6)
    return Program(run, (params, random.key(4), normal(6, 4), t), (0,))


def experts():
    params = {"gate": normal(4, 3), "up": normal(3, 4, 8, seed=1), "down": normal(3, 8, 4, seed=2)}

    def run(params, x):
        values, chosen = lax.top_k(nn.softmax(x @ params["gate"]), 2)
        weights = fnp.sum(nn.one_hot(chosen, 3) * values[..., None], 1)
        each = fnp.einsum("nd,edh->neh", x, params["up"])
        return fnp.einsum("neh,ehd,ne->nd", nn.relu(each), params["down"], weights)

    return Program(run, (params, normal(5, 4)), (0,), {"n": {"x": 0}}, ((normal(8, 4, seed=3),),))


def gru_gradient():
    params = {"x": normal(3, 12), "h": normal(4, 12, seed=1) / 2}

    def loss(params, xs):
        def turn(h, x):
            a, b, c = fnp.split(x @ params["x"], 3, -1)
            d, e, f = fnp.split(h @ params["h"], 3, -1)
            z, r = nn.sigmoid(a + d), nn.sigmoid(b + e)
            return (1 - z) * fnp.tanh(c + r * f) + z * h, None

        return fnp.sum(lax.scan(turn, fnp.zeros((xs.shape[1], 4)), xs)[0] ** 2)

    return Program(fg.grad(loss), (params, normal(5, 2, 3)), (), {"t": {"xs": 0}},
                   ((params, normal(8, 2, 3, seed=1)),))  # fmt: skip


APPLICATIONS = {
    f.__name__: f
    for f in (
        gpt_with_cache, resnet, dlrm, kalman_filter, factors, principal_components,
        normal_likelihood_gradient, power_iteration, autoencoder, diffusion_step, experts,
        gru_gradient,
    )
}  # fmt: skip
