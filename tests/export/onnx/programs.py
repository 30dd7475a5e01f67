"""Programs that models are made of: what is traced, what is stored, which axes are of any size."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, quantization, random, tree


@dataclass
class Program:
    """fun(*args); `inputs()` gives arguments (but stored ones) of several sizes where any do."""

    fun: object
    args: tuple
    stored: tuple = ()
    dynamic: dict | None = None
    more: tuple = ()

    def inputs(self):
        yield tuple(a for i, a in enumerate(self.args) if i not in self.stored)
        yield from self.more

    def results(self, *inputs):
        rest = iter(inputs)
        args = [a if i in self.stored else next(rest) for i, a in enumerate(self.args)]
        return tree.leaves(fg.jit(self.fun)(*args))

    def flat(self, *inputs):
        return [np.asarray(x) for x in tree.leaves(inputs)]


def normal(*shape, seed=0):
    return fnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def dense():
    params = [{"w": normal(6, 8), "b": normal(8)}, {"w": normal(8, 3), "b": normal(3)}]

    def mlp(params, x):
        for layer in params[:-1]:
            x = nn.gelu(x @ layer["w"] + layer["b"], approximate=False)
        return nn.softmax(x @ params[-1]["w"] + params[-1]["b"])

    return Program(mlp, (params, normal(4, 6)), (0,), {"batch": {"x": 0}}, ((normal(9, 6),),))


def training_step():
    params = {"w": normal(6, 8), "v": normal(8, 2)}
    optimizer = optim.adam(1e-2)

    def step(params, state, x, y):
        loss = lambda p: fnp.mean((fnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2)
        value, grads = fg.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    args = (params, optimizer.init(params), normal(5, 6), normal(5, 2, seed=1))
    other = (*args[:2], normal(8, 6), normal(8, 2, seed=1))
    return Program(step, args, (), {"n": {"x": 0, "y": 0}}, (other,))


def pooled(x):
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def cnn(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, params["k"], (1, 1), "SAME", dimension_numbers=numbers)
    y = pooled(nn.relu(y))
    y = lax.conv_general_dilated(y, params["d"], (2, 2), "VALID", dimension_numbers=numbers,
                                 rhs_dilation=(1, 2))  # fmt: skip
    return fnp.reshape(y, (y.shape[0], -1)) @ params["w"]


CNN_PARAMS = lambda: {
    "k": normal(3, 3, 2, 4),
    "d": normal(2, 2, 4, 6, seed=1),
    "w": normal(12, 5, seed=2),
}


def convolutional():
    x = normal(3, 8, 8, 2, seed=3)
    more = ((normal(2, 8, 8, 2, seed=4),),)
    return Program(cnn, (CNN_PARAMS(), x), (0,), {"batch": {"x": 0}}, more)


def convolutional_gradient():
    grad = fg.grad(lambda p, x: fnp.sum(fnp.tanh(cnn(p, x) / 50)))
    return Program(grad, (CNN_PARAMS(), normal(3, 8, 8, 2, seed=3)))


def _gpt():
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
    try:
        import gpt
    finally:
        sys.path.pop(0)
    cfg = gpt.Config(vocabulary=17, context=16, width=16, heads=2, layers=2)
    return gpt, cfg, gpt.init_params(random.key(0), cfg)


def transformer():
    gpt, cfg, params = _gpt()
    logits = lambda params, tokens: gpt.logits_of(params, tokens, cfg)
    tokens = lambda n: fnp.asarray(np.random.default_rng(n).integers(0, 17, (n, 12)), "int32")
    return Program(logits, (params, tokens(2)), (0,), {"b": {"tokens": 0}}, ((tokens(5),),))


def transformer_gradient():
    gpt, cfg, params = _gpt()
    grad = fg.grad(lambda p, x, y: gpt.loss_of(p, x, y, cfg))
    tokens = fnp.asarray(np.random.default_rng(0).integers(0, 17, (2, 12)), "int32")
    return Program(grad, (params, tokens, fnp.flip(tokens, 0)))


def lstm():
    params = {"x": normal(3, 16), "h": normal(4, 16, seed=1) * 0.3, "b": normal(16, seed=2)}

    def run(params, xs):
        def turn(state, x):
            h, c = state
            i, f, g, o = fnp.split(x @ params["x"] + h @ params["h"] + params["b"], 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * fnp.tanh(g)
            h = nn.sigmoid(o) * fnp.tanh(c)
            return (h, c), h

        zero = fnp.zeros((xs.shape[1], 4))
        return lax.scan(turn, (zero, zero), xs)

    more = ((normal(7, 5, 3, seed=5),),)
    return Program(run, (params, normal(6, 2, 3)), (0,), {"t": {"xs": 0}, "b": {"xs": 1}}, more)


def lstm_gradient():
    program = lstm()
    grad = fg.grad(lambda p, xs: fnp.sum(program.fun(p, xs)[1] ** 2))
    return Program(grad, program.args)


def k_means():
    def fit(points, centers):
        def distance(c):
            return fnp.sum((points[:, None] - c[None]) ** 2, -1)

        def turn(state):
            c, _, i = state
            near = nn.one_hot(fnp.argmin(distance(c), 1), c.shape[0])
            new = near.T @ points / fnp.maximum(near.sum(0), 1)[:, None]
            return new, fnp.max(fnp.abs(new - c)), i + 1

        go = lambda state: (state[1] > 1e-5) & (state[2] < 50)
        return lax.while_loop(go, turn, (centers, fnp.float32(np.inf), 0))

    return Program(fit, (normal(30, 2), normal(3, 2, seed=1)))


def drawn():
    def draw(key, x):
        a, b = random.split(key)
        return random.normal(a, (4,)) + x, random.randint(b, (5,), 0, 9), random.bernoulli(a, 0.3)

    return Program(draw, (random.key(3), normal(4)))


def branches():
    def choose(i, x):
        return lax.switch(i, [fnp.sin, lambda x: x * 2, lambda x: -fnp.cumsum(x)], x)

    more = tuple((fnp.int32(i), normal(4)) for i in (-1, 1, 2, 7))
    return Program(choose, (fnp.int32(0), normal(4)), more=more)


def spectrum():
    def filtered(x):
        z = fnp.fft.rfft(x)
        return fnp.fft.irfft(z * fnp.exp(-fnp.arange(z.shape[-1]) / 3), x.shape[-1]), fnp.abs(z)

    return Program(filtered, (normal(3, 12),), (), {"n": {"x": 0}}, ((normal(5, 12, seed=1),),))


def ordered():
    def sort(x, keys):
        order = fnp.argsort(keys)
        return x[order], fnp.sort(x), fnp.median(x), lax.top_k(x, 3), x.at[keys].add(1.0)

    return Program(sort, (normal(8), fnp.asarray([3, 1, 3, 0, 9, 1, 7, 2], "int32")))


def integrated():
    def orbit(y):
        f = lambda y: fnp.stack([y[1], -fnp.sin(y[0])])

        def turn(i, y):
            h = fnp.float32(0.1)
            k1 = f(y)
            k2 = f(y + h / 2 * k1)
            return y + h * k2

        return lax.fori_loop(0, 20, turn, y)

    return Program(orbit, (normal(2, 5),))


def quantized(config):
    def made():
        params = {"w": normal(32, 16) / 8, "v": normal(16, 16, seed=1)}
        f = lambda params, x: nn.relu(x @ params["w"]) @ params["v"]
        x = normal(10, 32, seed=2)
        f, params, _ = fg.quantize(f, params, config, [(x,)])
        return Program(f, (params, x), (0,), {"n": {"x": 0}}, ((normal(3, 32),),))

    return made


PROGRAMS = {
    f.__name__: f
    for f in (
        dense, training_step, convolutional, convolutional_gradient, transformer,
        transformer_gradient, lstm, lstm_gradient, k_means, drawn, branches, spectrum, ordered,
        integrated,
    )
} | {
    f"quantized {name}": quantized(config)
    for name, config in (
        ("int4", quantization.WeightOnly(4, group=16)), ("int8", quantization.WeightOnly(8)),
        ("dynamic", quantization.Int8Dynamic()), ("nf4", quantization.NF4(block=16)),
        ("static", quantization.Int8Static(quantization.MinMax())),
    )
}  # fmt: skip
