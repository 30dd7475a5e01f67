"""Whole programs as users write them, each against an independent formula in NumPy.

Every program runs op by op, compiled, and mapped over two lanes; all three must agree.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, random, tree

F64 = np.float64


def close(got, want, rtol=1e-9, atol=1e-10):
    tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), got, want)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def agree(f, *args, rtol=1e-9, atol=1e-10):
    """f(*args), having checked that the compiled and the mapped f give the same."""
    want = f(*args)
    close(fg.jit(f)(*args), want, rtol, atol)
    twice = tree.map(lambda x: fnp.stack([x, x]), args)
    lanes = fg.vmap(f)(*twice)
    for lane in range(2):
        close(tree.map(lambda x: x[lane], lanes), want, rtol, atol)
    return want


def slope(f, x, direction, step=1e-6):
    """The derivative of f along a direction, by a central difference."""
    up, down = (tree.map(lambda a, d: a + s * step * d, x, direction) for s in (1, -1))
    return (float(f(up)) - float(f(down))) / (2 * step)


def along(grads, direction):
    return sum(
        float((g * d).sum()) for g, d in zip(*map(tree.leaves, (grads, direction)), strict=True)
    )


# ---- neural networks


def test_classifier_with_dropout_and_adam():
    params = {"w": normal(4, 6), "b": np.zeros(6), "v": normal(6, 3)}
    x, y = normal(8, 4), np.arange(8) % 3
    opt = optim.adam(0.1)

    def logits(p, key):
        h = nn.relu(x @ p["w"] + p["b"])
        keep = random.bernoulli(key, 0.8, h.shape)
        return fnp.where(keep, h / 0.8, 0.0) @ p["v"]

    def loss(p, key):
        logp = nn.log_softmax(logits(p, key))
        return -fnp.take_along_axis(logp, y[:, None], axis=1).mean()

    def step(p, state, key):
        value, grads = fg.value_and_grad(loss)(p, key)
        updates, state = opt.update(grads, state, p)
        return optim.apply_updates(p, updates), state, value, grads

    params = tree.map(fnp.asarray, params)
    key = random.key(0)
    new, _, value, grads = agree(step, params, opt.init(params), key)

    keep = np.asarray(random.bernoulli(key, 0.8, (8, 6)))
    w, v = np.asarray(params["w"]), np.asarray(params["v"])
    z = x @ w
    h = np.where(keep, np.maximum(z, 0) / 0.8, 0)
    e = np.exp(h @ v)
    p = e / e.sum(1, keepdims=True)
    close(value, -np.log(p[np.arange(8), y]).mean())
    d = (p - np.eye(3)[y]) / 8
    dz = np.where(keep & (z > 0), d @ v.T / 0.8, 0)
    close(grads, {"w": x.T @ dz, "b": dz.sum(0), "v": h.T @ d})
    close(new["v"], v - 0.1 * np.sign(h.T @ d), atol=1e-5)  # Adam's first step has one size

    run = fg.jit(step)
    state = opt.init(params)
    for k in random.split(key, 40):
        params, state, last, _ = run(params, state, k)
    assert last < 0.5 * value


def test_convolutional_network_with_batch_norm():
    params = {"c": 0.3 * normal(3, 3, 2, 4), "g": np.ones(4), "b": np.zeros(4), "w": normal(16, 3)}
    x = normal(2, 8, 8, 2)
    names = ("NHWC", "HWIO", "NHWC")

    def forward(p, x):
        h = lax.conv_general_dilated(x, p["c"], (2, 2), "SAME", dimension_numbers=names)
        mean, var = h.mean((0, 1, 2)), h.var((0, 1, 2))
        h = (h - mean) * lax.rsqrt(var + 1e-5) * p["g"] + p["b"]
        size = (1, 2, 2, 1)
        pooled = lax.reduce_window(nn.relu(h), -fnp.inf, lax.max, size, size, "VALID")
        return pooled.reshape(2, -1) @ p["w"], (h, pooled)

    def loss(p, x):
        out, aux = forward(p, x)
        return fnp.sum(fnp.tanh(out) ** 2), aux

    (_, (h, pooled)), grads = agree(fg.value_and_grad(loss, has_aux=True), params, x)
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
    conv = np.zeros((2, 4, 4, 4))
    for i, j in np.ndindex(4, 4):
        patch = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        conv[:, i, j] = np.einsum("nhwc,hwco->no", patch, params["c"])
    want = (conv - conv.mean((0, 1, 2))) / np.sqrt(conv.var((0, 1, 2)) + 1e-5)
    close(h, want)
    close(pooled, np.maximum(want, 0).reshape(2, 2, 2, 2, 2, 4).max((2, 4)))
    d = tree.map(lambda p: normal(*p.shape, seed=3), params)
    close(along(grads, d), slope(lambda p: loss(p, x)[0], params, d), rtol=1e-6)


class Cell(NamedTuple):
    x: Any
    h: Any
    b: Any


@pytest.mark.parametrize("wrap", [lambda f: f, fg.checkpoint], ids=["plain", "checkpoint"])
def test_lstm_by_scan(wrap):
    p = Cell(normal(3, 16), normal(4, 16), normal(16))
    xs = normal(5, 2, 3)

    def cell(p, carry, x):
        h, c = carry
        i, f, g, o = fnp.split(x @ p.x + h @ p.h + p.b, 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * fnp.tanh(g)
        h = nn.sigmoid(o) * fnp.tanh(c)
        return (h, c), h

    def loss(p, xs):
        zero = fnp.zeros((2, 4), F64)
        _, hs = lax.scan(wrap(partial(cell, p)), (zero, zero), xs)
        return (hs**2).sum(), hs

    (_, hs), grads = agree(fg.value_and_grad(loss, has_aux=True), p, xs)
    h, c, s = np.zeros((2, 4)), np.zeros((2, 4)), lambda z: 1 / (1 + np.exp(-z))
    for x, got in zip(xs, hs, strict=True):
        i, f, g, o = np.split(x @ p.x + h @ p.h + p.b, 4, axis=-1)
        c = s(f) * c + s(i) * np.tanh(g)
        h = s(o) * np.tanh(c)
        close(got, h)
    d = tree.map(lambda a: normal(*a.shape, seed=5), p)
    close(along(grads, d), slope(lambda p: loss(p, xs)[0], p, d), rtol=1e-6)


def test_decoding_with_a_cache_is_causal_attention():
    n, heads, size = 6, 2, 4
    x, w = normal(n, heads * size), normal(3, heads * size, heads * size) / 3

    def project(x):
        return [(x @ m).reshape(-1, heads, size) for m in w]

    def decode(x):
        def step(cache, given):
            i, row = given
            q, k, v = project(row[None])
            ks = lax.dynamic_update_slice(cache[0], k, (i, 0, 0))
            vs = lax.dynamic_update_slice(cache[1], v, (i, 0, 0))
            scores = fnp.einsum("hd,thd->ht", q[0], ks) / size**0.5
            scores = fnp.where(fnp.arange(n) <= i, scores, -fnp.inf)
            return (ks, vs), fnp.einsum("ht,thd->hd", nn.softmax(scores), vs)

        cache = fnp.zeros((n, heads, size), F64)
        return lax.scan(step, (cache, cache), (fnp.arange(n), x))[1]

    def whole(x):
        return nn.dot_product_attention(*project(x), is_causal=True)

    q, k, v = (np.asarray(a) for a in project(x))
    e = np.tril(np.exp(np.einsum("qhd,khd->hqk", q, k) / 2))
    want = np.einsum("hqk,khd->qhd", e / e.sum(-1, keepdims=True), v)
    close(agree(decode, x), want)
    close(agree(whole, x), want)
    gradient = fg.grad(lambda x: (whole(x) ** 3).sum())
    close(fg.grad(lambda x: (decode(x) ** 3).sum())(x), gradient(x))


def test_mixed_precision_step():
    x, y, p = normal(8, 4), normal(8, 1), {"a": normal(4, 6), "b": normal(6, 1)}
    x, y, p = tree.map(lambda a: fnp.asarray(a, fnp.float32), (x, y, p))

    def loss(p, kind):
        q, low = tree.map(lambda a: a.astype(kind), (p, x))
        return fnp.mean(((nn.relu(low @ q["a"]) @ q["b"]).astype(fnp.float32) - y) ** 2)

    half = agree(fg.grad(lambda p: 256.0 * loss(p, fnp.bfloat16)), p, rtol=0.02, atol=2.0)
    full = fg.grad(loss)(p, fnp.float32)
    assert all(g.dtype == fnp.float32 for g in tree.leaves(half))
    for low, high in zip(tree.leaves(half), tree.leaves(full), strict=True):
        assert fnp.linalg.norm(low / 256.0 - high) < 0.05 * fnp.linalg.norm(high)


# ---- probability


def test_gaussian_process_marginal_likelihood():
    x = np.linspace(0, 4, 9)
    y = np.sin(x) + 0.1 * normal(9)

    def covariance(t, xp):
        rbf = xp.exp(2 * t[0] - 0.5 * (x[:, None] - x) ** 2 * xp.exp(-2 * t[1]))
        return rbf + xp.exp(t[2]) * np.eye(9)

    def nll(t):
        chol = fnp.linalg.cholesky(covariance(t, fnp))
        z = lax.linalg.triangular_solve(chol, fnp.asarray(y)[:, None], left_side=True, lower=True)
        return 0.5 * (z**2).sum() + fnp.log(fnp.diag(chol)).sum()

    t = np.array([0.1, -0.2, -1.0])
    value, grads = agree(fg.value_and_grad(nll), t)
    cov = covariance(t, np)
    inv = np.linalg.inv(cov)
    close(value, 0.5 * y @ inv @ y + 0.5 * np.linalg.slogdet(cov)[1])
    rbf = cov - np.exp(t[2]) * np.eye(9)
    parts = [2 * rbf, rbf * (x[:, None] - x) ** 2 * np.exp(-2 * t[1]), np.exp(t[2]) * np.eye(9)]
    inner = inv - np.outer(inv @ y, inv @ y)
    close(grads, np.array([0.5 * np.sum(inner * part) for part in parts]))
    hess = agree(fg.hessian(nll), t)
    v = np.array([1.0, 2.0, 3.0])
    close(hess @ v, fg.jvp(fg.grad(nll), (t,), (v,))[1])


def test_kalman_filter_in_sequence_and_in_parallel():
    trans, noise = np.array([[1.0, 0.1], [0.0, 0.95]]), 0.1 * np.eye(2)
    obs, spread, ys, eye = np.array([[1.0, 0.0]]), np.array([[0.3]]), normal(7, 1), np.eye(2)

    def gain(cov):
        s = obs @ cov @ obs.T + spread
        return fnp.linalg.solve(s, obs @ cov).T, s

    def sequential(ys):
        def step(carry, y):
            m, cov = trans @ carry[0], trans @ carry[1] @ trans.T + noise
            k, s = gain(cov)
            m, cov = m + k @ (y - obs @ m), cov - k @ s @ k.T
            return (m, cov), (m, cov)

        return lax.scan(step, (fnp.zeros(2, F64), fnp.asarray(eye)), ys)[1]

    def parallel(ys):  # Särkkä and García-Fernández, 2021
        def element(y, first):
            prior = fnp.where(first, trans @ trans.T + noise, noise)
            k, s = gain(prior)
            a = fnp.where(first, 0.0, (eye - k @ obs) @ trans)
            back = fnp.linalg.solve(obs @ noise @ obs.T + spread, obs @ trans).T
            return a, k @ y, prior - k @ s @ k.T, back @ y, back @ obs @ trans

        def combine(p, q):
            (a1, b1, c1, e1, j1), (a2, b2, c2, e2, j2) = p, q
            m, n = fnp.linalg.inv(eye + c1 @ j2), fnp.linalg.inv(eye + j2 @ c1)
            b = a2 @ m @ (b1 + c1 @ e2) + b2
            e = a1.T @ n @ (e2 - j2 @ b1) + e1
            return a2 @ m @ a1, b, a2 @ m @ c1 @ a2.T + c2, e, a1.T @ n @ j2 @ a1 + j1

        elements = fg.vmap(element)(ys, fnp.arange(len(ys)) == 0)
        return lax.associative_scan(fg.vmap(combine), elements)[1:3]

    means, covs = agree(sequential, ys)
    close(agree(parallel, ys), (means, covs))
    # The last state given all observations, as one Gaussian condition.
    n = len(ys)
    path = np.zeros((2 * n, 2 * n))
    cov = eye
    for i in range(n):
        cov = trans @ cov @ trans.T + noise
        for j in range(i, n):
            block = np.linalg.matrix_power(trans, j - i) @ cov
            path[2 * j : 2 * j + 2, 2 * i : 2 * i + 2] = block
            path[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = block.T
    seen = np.kron(np.eye(n), obs)
    last = path[-2:] @ seen.T @ np.linalg.inv(seen @ path @ seen.T + 0.3 * np.eye(n))
    close(means[-1], last @ ys[:, 0])
    close(covs[-1], path[-2:, -2:] - last @ seen @ path[:, -2:])


def test_hamiltonian_monte_carlo():
    scales = np.array([1.0, 2.0])

    def logp(x):
        return -0.5 * fnp.sum((x / scales) ** 2)

    def leapfrog(x, p):
        def body(_, state):
            x, p = state
            p = p + 0.1 * fg.grad(logp)(x)
            x = x + 0.2 * p
            return x, p + 0.1 * fg.grad(logp)(x)

        return lax.fori_loop(0, 8, body, (x, p))

    def chain(key, x):
        def step(x, key):
            k1, k2 = random.split(key)
            p = random.normal(k1, x.shape, F64)
            y, q = leapfrog(x, p)
            gain = logp(y) - logp(x) - 0.5 * (q @ q - p @ p)
            return lax.cond(fnp.log(random.uniform(k2)) < gain, lambda: (y, y), lambda: (x, x))

        return lax.scan(step, x, random.split(key, 30))[1]

    x, p = normal(2), normal(2, seed=1)
    y, q = leapfrog(x, p)
    close(leapfrog(y, -q), (x, -p))  # time can be reversed
    agree(chain, random.key(0), x)
    keys = random.split(random.key(1), 200)
    samples = np.asarray(fg.jit(fg.vmap(chain, (0, None)))(keys, x))[:, 10:]
    np.testing.assert_allclose(samples.std((0, 1)), scales, rtol=0.1)
    np.testing.assert_allclose(samples.mean((0, 1)), 0.0, atol=0.2)


# ---- equations


def test_neural_ode_and_its_adjoint():
    p, y0 = {"a": normal(2, 5), "b": 0.3 * normal(5, 2)}, normal(3, 2)

    def field(p, y, t):
        return fnp.tanh(y @ p["a"] + t) @ p["b"]

    def rk4(f, y, t, h):
        go = lambda s, d: tree.map(lambda u, v: u + s * v, y, d)
        k1 = f(y, t)
        k2 = f(go(h / 2, k1), t + h / 2)
        k3 = f(go(h / 2, k2), t + h / 2)
        k4 = f(go(h, k3), t + h)
        new = lambda u, a, b, c, d: u + h / 6 * (a + 2 * b + 2 * c + d)
        return tree.map(new, y, k1, k2, k3, k4)

    def solve(p, y, n=20):
        ts = fnp.arange(n) / n
        return lax.scan(lambda y, t: (rk4(partial(field, p), y, t, 1 / n), None), y, ts)[0]

    def backward(residuals, ct):
        p, y = residuals

        def augmented(state, t):
            y, a, _ = state
            dy, back = fg.vjp(lambda p, y: field(p, y, t), p, y)
            dp, da = back(a)
            return dy, -da, tree.map(lambda g: -g, dp)

        def step(state, t):
            return rk4(augmented, state, t, -1 / 20), None

        start = (y, ct, tree.map(fnp.zeros_like, p))
        _, a, dp = lax.scan(step, start, 1.0 - fnp.arange(20) / 20)[0]
        return dp, a

    adjoint = fg.custom_vjp(solve, nondiff_argnums=(2,))
    adjoint.defvjp(
        lambda p, y, n: ((out := solve(p, y, n)), (p, out)), lambda n, r, ct: backward(r, ct)
    )
    through = agree(fg.grad(lambda p, y: (solve(p, y) ** 2).sum(), (0, 1)), p, y0)
    implicit = agree(fg.grad(lambda p, y: (adjoint(p, y, 20) ** 2).sum(), (0, 1)), p, y0)
    close(implicit, through, rtol=1e-4, atol=1e-6)
    d = tree.map(lambda a: normal(*a.shape, seed=7), p)
    close(along(through[0], d), slope(lambda p: (solve(p, y0) ** 2).sum(), p, d), rtol=1e-6)


def test_gauss_newton_and_newton_find_the_parameters():
    t = np.linspace(0, 3, 12)
    truth = np.array([2.0, 1.1, 0.5])
    y = truth[0] * np.exp(-truth[1] * t) + truth[2]

    def residual(th):
        return th[0] * fnp.exp(-th[1] * t) + th[2] - y

    def loss(th):
        return 0.5 * fnp.sum(residual(th) ** 2)

    def gauss_newton(th):
        def step(th, _):
            return th - fnp.linalg.lstsq(fg.jacfwd(residual)(th), residual(th))[0], None

        return lax.scan(step, th, None, length=7)[0]

    def newton(th):
        def step(state):
            th, _ = state
            g = fg.grad(loss)(th)
            return th - fnp.linalg.solve(fg.hessian(loss)(th), g), fnp.linalg.norm(g)

        return lax.while_loop(lambda s: s[1] > 1e-9, step, (th, fnp.asarray(fnp.inf, F64)))[0]

    close(agree(gauss_newton, np.array([1.5, 0.8, 0.3])), truth, rtol=1e-7)
    close(agree(newton, truth + 0.02), truth, rtol=1e-7)
    a = np.stack([np.exp(-truth[1] * t), -truth[0] * t * np.exp(-truth[1] * t), np.ones(12)], 1)
    close(fg.jacrev(residual)(truth), a)
    close(fg.hessian(loss)(truth), a.T @ a)  # there are no residuals


def test_poisson_equation_by_fft():
    n = 8
    k = 2 * np.pi * np.fft.fftfreq(n)
    k2 = k[:, None] ** 2 + k**2

    def solve(rho):
        waves = fnp.fft.fft2(rho)
        return fnp.fft.ifft2(fnp.where(k2 > 0, -waves / np.where(k2 > 0, k2, 1), 0)).real

    rho, x = normal(n, n), np.arange(n) * 2 * np.pi / n
    wave = np.cos(x)[:, None] * np.sin(2 * x)
    close(agree(solve, wave), -wave / (5 * (2 * np.pi / n) ** 2))
    # The operator is symmetric: the energy's gradient is the solution itself.
    close(agree(fg.grad(lambda r: 0.5 * fnp.vdot(r, solve(r))), rho), solve(rho))


# ---- loops and indices


def test_mandelbrot_by_a_mapped_while_loop():
    c = (np.linspace(-2, 0.5, 9) + 1j * np.linspace(-1, 1, 7)[:, None]).astype(np.complex128)

    def escape(c):
        def body(state):
            z, i = state
            return z * z + c, i + 1

        alive = lambda state: (fnp.abs(state[0]) < 2) & (state[1] < 25)
        return lax.while_loop(alive, body, (fnp.zeros_like(c), 0))[1]

    want = np.zeros(c.shape, int)
    for at in np.ndindex(c.shape):
        z = 0
        while abs(z) < 2 and want[at] < 25:
            z, want[at] = z * z + c[at], want[at] + 1
    np.testing.assert_array_equal(agree(fg.vmap(fg.vmap(escape)), c), want)


def test_dynamic_time_warping_by_nested_scans():
    a, b = normal(5), normal(7, seed=2)

    def warp(a, b):
        def row(above, costs):
            def column(left, given):
                cost, up, corner = given
                new = cost + fnp.minimum(left, fnp.minimum(up, corner))
                return new, new

            inf = fnp.asarray(fnp.inf, F64)
            _, new = lax.scan(column, inf, (costs, above[1:], above[:-1]))
            return fnp.concatenate([fnp.full(1, fnp.inf, F64), new]), None

        start = fnp.full(len(b) + 1, fnp.inf, F64).at[0].set(0.0)
        return lax.scan(row, start, (a[:, None] - b) ** 2)[0][-1]

    table = np.full((6, 8), np.inf)
    table[0, 0] = 0
    for i, j in np.ndindex(5, 7):
        best = min(table[i, j], table[i + 1, j], table[i, j + 1])
        table[i + 1, j + 1] = (a[i] - b[j]) ** 2 + best
    value, grads = agree(fg.value_and_grad(warp), a, b)
    close(value, table[-1, -1])
    d = normal(5, seed=4)
    close(grads @ d, slope(lambda a: warp(a, b), a, d), rtol=1e-6)


def test_k_means_with_segment_sums():
    points = normal(40, 2) + np.repeat([[0, 0], [6, 0], [0, 6], [6, 6]], 10, axis=0)

    def labels(centres):
        return fnp.argmin(((points[:, None] - centres) ** 2).sum(-1), axis=1)

    def fit(centres):
        def step(state):
            old, _ = state
            near = labels(old)
            sums = fnp.zeros_like(old).at[near].add(points)
            new = sums / fnp.bincount(near, length=4)[:, None]
            return new, fnp.abs(new - old).max()

        return lax.while_loop(lambda s: s[1] > 0, step, (centres, fnp.asarray(1.0, F64)))[0]

    centres = agree(fit, points[[0, 10, 20, 30]])
    near = np.asarray(labels(centres))
    close(centres, np.stack([points[near == k].mean(0) for k in range(4)]))


# ---- trees and derivatives


def test_per_example_gradients_and_fisher_information():
    @partial(tree.register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
    @dataclass
    class Model:
        w: Any
        b: Any
        name: str = "logistic"

    model, x, y = Model(normal(3), fnp.asarray(0.2, F64)), normal(6, 3), np.arange(6) % 2

    def logp(m, x, y):
        z = x @ m.w + m.b
        return fnp.where(y == 1, nn.log_sigmoid(z), nn.log_sigmoid(-z))

    grads = agree(fg.vmap(fg.grad(logp), in_axes=(None, 0, 0)), model, x, y)
    p = 1 / (1 + np.exp(-(x @ model.w + 0.2)))
    close((grads.w, grads.b), ((y - p)[:, None] * x, y - p))
    assert grads.name == "logistic"
    hess = fg.hessian(lambda m: fg.vmap(logp, (None, 0, 0))(m, x, y).sum())(model)
    close(hess.w.w, -(x.T * (p * (1 - p))) @ x)
    close(hess.b.w, -(p * (1 - p)) @ x)


def test_hutchinson_trace_and_lanczos():
    a = normal(6, 6)
    a = a @ a.T

    def f(x):
        return 0.5 * x @ a @ x + fnp.sum(x**4)

    x = normal(6)
    hvp = lambda v: fg.jvp(fg.grad(f), (x,), (v,))[1]
    signs = random.rademacher(random.key(0), (64, 6), F64)
    want = a + np.diag(12 * x**2)
    close(agree(fg.vmap(hvp), np.eye(6)), want)
    estimates = agree(fg.vmap(lambda v: v @ hvp(v)), signs)
    close(estimates, np.einsum("ni,ij,nj->n", signs, want, signs))

    def lanczos(v):
        def step(carry, i):
            basis, v = carry
            basis = basis.at[i].set(v)
            w = hvp(v)
            w = w - basis.T @ (basis @ w)
            w = w - basis.T @ (basis @ w)
            return (basis, w / fnp.linalg.norm(w)), None

        start = (fnp.zeros((6, 6), F64), v / fnp.linalg.norm(v))
        (basis, _), _ = lax.scan(step, start, fnp.arange(6))
        return fnp.linalg.eigvalsh(basis @ fg.vmap(hvp)(basis).T)

    close(agree(lanczos, normal(6, seed=1)), np.linalg.eigvalsh(want), rtol=1e-7)
