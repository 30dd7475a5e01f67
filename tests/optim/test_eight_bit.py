"""Adam in 8 bits: the format, steps beside those of Adam, memory, programs."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, tree
from funcgrad.optim.eight_bit import Blocks, dequantized, dynamic_map, quantized


@pytest.mark.parametrize("signed", [False, True])
def test_the_map(signed):
    numbers = dynamic_map(signed)
    assert numbers.shape == (256,)
    assert (np.diff(numbers) > 0).all()
    assert 0 in numbers
    assert numbers[-1] == 1
    # As many numbers for each power of ten as it says.
    counts = [np.sum((numbers > 10.0 ** (i - 7)) & (numbers < 10.0 ** (i - 6))) for i in range(7)]
    assert counts == [2 ** (i + (not signed)) for i in range(7)]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (256,), (3, 200), (0,), (0, 4)])
def test_numbers_come_back_as_the_nearest_of_their_block(signed, shape, rng):
    x = rng.normal(size=shape).astype(np.float32)
    x = x if signed else np.abs(x)
    held = quantized(fnp.array(x), signed)
    assert held.codes.shape == shape
    assert held.codes.dtype == np.uint8
    assert held.largest.shape == (-(-x.size // 256),)
    flat, numbers = x.ravel(), dynamic_map(signed)
    wanted = [
        numbers[np.abs(numbers - v / s).argmin()] * s
        for i, v in enumerate(flat)
        for s in [np.abs(flat[i // 256 * 256 : i // 256 * 256 + 256]).max()]
    ]
    assert np.allclose(np.ravel(dequantized(held, signed)), wanted, rtol=1e-6)


def test_second_moments_that_are_not_zero_stay_so():
    x = fnp.array([1.0, 1e-12, 0.0])
    got = np.asarray(dequantized(quantized(x, False), False))
    assert got[1] > 0
    assert got[2] == 0
    zeros = fnp.zeros(300)
    assert not np.any(dequantized(quantized(zeros, True), True))


def trained(opt, params, target, steps=200):
    def step(i, carry):
        params, state = carry
        grads = tree.map(lambda p, t: p - t, params, target)
        updates, state = opt.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    return fg.jit(lambda c: fg.lax.fori_loop(0, steps, step, c))((params, opt.init(params)))


def test_it_steps_as_adam_does(rng):
    target = {"w": fnp.array(rng.normal(size=(80, 64)).astype(np.float32)), "b": fnp.ones(7)}
    params = tree.map(fnp.zeros_like, target)
    got, state = trained(optim.adam8bit(0.02), params, target)
    wanted, _ = trained(optim.adam(0.02), params, target)
    (moments, *_) = state
    assert isinstance(moments.mu["w"], Blocks)
    assert moments.mu["b"].dtype == np.float32
    assert np.array_equal(got["b"], wanted["b"])
    assert np.abs(np.asarray(got["w"] - wanted["w"])).mean() < 0.01
    assert np.abs(np.asarray(got["w"] - target["w"])).mean() < 0.01


def test_moments_take_a_quarter_of_the_memory():
    params = fnp.zeros((128, 128))
    size = lambda opt: sum(np.asarray(x).nbytes for x in tree.leaves(opt.init(params)))
    assert size(optim.adam8bit(0.1)) < 0.26 * size(optim.adam(0.1))


def test_narrow_parameters_and_decay():
    w = fnp.ones((64, 64), "bfloat16")
    opt = optim.adam8bit(0.1, weight_decay=0.5)
    updates, _ = opt.update(w, opt.init(w), w)
    assert updates.dtype == w.dtype
    assert np.allclose(np.asarray(updates, np.float32), -0.15, rtol=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optim.scale_by_adam8bit(block=0), "need block ≥ 1 and least ≥ 0, got 0"),
        (lambda: optim.adam8bit(0.1).init(fnp.ones(3, int)), "must be real floats, got int32"),
        (
            lambda: optim.adam8bit(0.1).init(fnp.ones(3, complex)),
            "must be real floats, got complex",
        ),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
