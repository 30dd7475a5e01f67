"""Accuracy of the demo's GPT in narrow dtypes at equal steps, and of adapters of its quantized
weights on another text. Run with -s to see the table.

The rate falls to 0 by a cosine: at a constant rate a loss is that of the last few batches. Even so,
two runs of float32 that begin one rounding apart end up to 0.02 apart, in any direction: what the
dtype does is the mean over seeds, of losses of the same start.
"""

import argparse
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, optim, random, tree
from funcgrad import quantization as q

STEPS, BATCH, SEEDS = 400, 8, 8


@pytest.fixture(scope="module")
def gpt():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
        yield importlib.import_module("gpt")


def steps_of(gpt, opt, gradients, codes):
    """`STEPS` steps of (scale, parameters, moments); gradients: as `scaled_value_and_grad`."""
    codes = fnp.asarray(codes)

    @fg.jit
    def run(params):
        def step(state, key):
            scale, params, moments = state
            x, y = gpt.batch_at(key, codes, BATCH, 32)
            scale, finite, value, grads = gradients(scale, params, x, y)
            updates, new = opt.update(grads, moments, params)
            new = optim.apply_updates(params, updates), new
            params, moments = optim.select(finite, new, (params, moments))
            return (scale, params, moments), value

        start = optim.LossScale(), params, opt.init(params)
        return lax.scan(step, start, random.split(random.key(1), STEPS))[0][1]

    return run


def whole(loss):
    """Gradients without a scale, in the form of those with one."""

    def gradients(scale, params, x, y):
        value, grads = fg.value_and_grad(loss)(params, x, y)
        return scale, fnp.array(True), value, grads

    return gradients


def held_out(gpt, loss, params, codes):
    x, y = gpt.batch_at(random.key(7), fnp.asarray(codes), 64, 32)
    return float(fg.jit(loss)(params, x, y))


def test_narrow_training_and_adapters(gpt):
    train, held, alphabet = gpt.load_text()
    cfg = gpt.Config(len(alphabet), context=32, width=48, heads=4, layers=1)

    def loss(params, x, y):
        return gpt.loss_of(params, x, y, cfg)

    opt = optim.adam(optim.cosine_decay_schedule(3e-3, STEPS))
    ways = {
        "float32": whole(loss),
        "bf16": whole(fg.autocast(loss)),
        "fp16, scaled": fg.scaled_value_and_grad(fg.autocast(loss, "float16")),
    }
    starts = [gpt.init_params(random.key(seed), cfg) for seed in range(SEEDS)]
    rounded = [tree.map(lambda x: x.astype("bfloat16").astype("float32"), p) for p in starts]
    runs = {name: steps_of(gpt, opt, gradients, train) for name, gradients in ways.items()}
    trained = {name: list(map(run, starts)) for name, run in runs.items()}
    trained["float32, start rounded"] = list(map(runs["float32"], rounded))
    losses = {
        name: np.array([held_out(gpt, loss, p, held) for p in many])
        for name, many in trained.items()
    }
    found = {name: values.mean() for name, values in losses.items()}
    base, before = trained["float32"][0], held_out(gpt, loss, starts[0], held)

    # Another text: a module's code, of the characters that the model knows.
    text = [alphabet.index(c) for c in inspect.getsource(argparse) if c in alphabet]
    other = np.array(text, np.int32)
    cut = len(other) * 9 // 10
    qloss, qbase, _ = fg.quantize(loss, base, {"qkv|out|up$|down$": q.NF4(block=16)})
    lloss, frozen, adapters = fg.lora(qloss, qbase, "qkv|out|up$|down$", random.key(2), rank=8)

    def tuned_loss(adapters, x, y):
        return lloss(frozen, adapters, x, y)

    tuned = steps_of(gpt, opt, whole(tuned_loss), other[:cut])(adapters)
    found["other text, float32"] = held_out(gpt, loss, base, other[cut:])
    found["other text, NF4"] = held_out(gpt, qloss, qbase, other[cut:])
    found["other text, QLoRA"] = held_out(gpt, tuned_loss, tuned, other[cut:])
    print("\n" + "\n".join(f"{name:22}{value:8.4f}" for name, value in found.items()))
    for name, values in losses.items():
        print(f"{name:22}", *(f"{d:+8.4f}" for d in values - losses["float32"]))
    assert found["float32"] < before - 1.0
    for name in ("bf16", "fp16, scaled"):
        assert abs(found[name] - found["float32"]) < 0.01, found
    assert found["other text, QLoRA"] < found["other text, NF4"] - 0.1
    assert abs(found["other text, NF4"] - found["other text, float32"]) < 0.3
    assert all(bool(fnp.isfinite(x).all()) for x in tree.leaves(tuned))
