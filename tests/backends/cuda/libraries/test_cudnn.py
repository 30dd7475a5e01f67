"""cuDNN's convolutions on a stand-in of its signatures: forms, layouts, algorithms, errors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.libraries import cudnn
from funcgrad.backends.cuda.libraries.convolutions import convolution
from funcgrad.backends.program import HostStep, KernelStep, walk
from tests.backends.cuda.libraries.test_cublaslt import TOLERANCES, rounded
from tests.backends.cuda.simulated import numbers
from tests.backends.cuda.stand_in import on_fake

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")
# Shapes of images and kernel, how they meet, and what functions results and gradients are.
CASES = {
    "first": ((2, 4, 7, 6), (6, 4, 3, 2), {"padding": "VALID"}, "forward filter forward"),
    "last": ((2, 7, 6, 4), (3, 2, 4, 6), {"padding": [(1, 1), (0, 0)], "dimension_numbers": LAST},
             "forward filter forward"),
    "strides": ((2, 3, 9, 8), (4, 3, 3, 3), {"window_strides": (2, 3), "padding": [(1, 1), (2, 2)]},
                "forward filter data"),
    "uneven": ((2, 3, 8, 8), (4, 3, 3, 3), {"window_strides": (2, 2), "padding": "SAME"},
               "forward filter data"),
    "uneven, last": ((1, 8, 7, 3), (3, 3, 3, 4), {"window_strides": (2, 1), "padding": "SAME",
                     "dimension_numbers": LAST}, "forward filter data"),
    "dilation": ((2, 3, 9, 9), (4, 3, 2, 3), {"rhs_dilation": (3, 2), "padding": [(2, 1), (2, 2)]},
                 "forward filter forward"),
    "cut": ((2, 3, 9, 9), (4, 3, 3, 3), {"padding": [(-1, 0), (0, -2)]}, "forward filter forward"),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 3), {"feature_group_count": 2, "padding": "SAME"},
               "forward filter forward"),
    "depthwise": ((2, 4, 7, 7), (8, 1, 3, 3), {"feature_group_count": 4, "padding": [(1, 1)] * 2,
                  "window_strides": (2, 2)}, "forward filter data"),
    "depthwise, last": ((2, 7, 7, 4), (3, 3, 1, 4), {"feature_group_count": 4, "padding": "VALID",
                        "window_strides": (2, 2), "dimension_numbers": LAST},
                        "forward filter data"),
    "one axis": ((2, 4, 9), (6, 4, 3), {"window_strides": (2,), "padding": [(1, 1)]},
                 "forward filter data"),
    "three axes": ((1, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"padding": "VALID"},
                   "forward filter forward"),
    "transposed": ((2, 4, 5, 4), (6, 4, 4, 4), {"lhs_dilation": (2, 2), "padding": [(2, 2)] * 2},
                   "data filter forward"),
    "batch groups": ((4, 3, 6, 5), (6, 3, 3, 2), {"batch_group_count": 2, "padding": "VALID"},
                     "filter forward forward"),
}  # fmt: skip


def of(name):
    """Images, kernel, and their convolution."""
    left, right, how, kinds = CASES[name]
    how = {"window_strides": (1,) * (len(left) - 2)} | how
    return (
        numbers(*left),
        numbers(*right),
        lambda x, w: lax.conv_general_dilated(x, w, **how),
        kinds,
    )


def calls(program):
    found = [s for s in walk(program.program.steps) if isinstance(s, HostStep)]
    return [c.kind for c in map(convolution, found) if c is not None]


def both(f):
    def values(x, w):
        y, pull = fg.vjp(f, x, w)
        return [y, *pull(y)[::-1]]

    return values


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, fake, gpu):
    x, w, f, kinds = of(name)
    program = on_fake(both(f), fake, gpu, x, w)
    assert " ".join(sorted(calls(program))) == " ".join(sorted(kinds.split()))
    before = fake.dnn_calls()
    for got, want in zip(program([x, w]), fg.jit(both(f))(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert fake.dnn_calls() - before == len(kinds.split())


@pytest.mark.parametrize(
    ("name", "dtype"), [("strides", "float64"), ("last", "bfloat16"), ("strides", "float16")]
)
def test_dtypes(name, dtype, fake, gpu):
    x, w, f, kinds = of(name)
    x, w = (np.asarray(fnp.asarray(v).astype(dtype)) for v in (x, w))
    program = on_fake(both(f), fake, gpu, x, w)
    assert len(calls(program)) == len(kinds.split())
    wide = [v.astype("float64") for v in (x, w)]
    for got, want in zip(program([x, w]), both(f)(*wide), strict=True):
        most = TOLERANCES[dtype] * np.abs(want).max()
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got.astype("float64"), want, atol=2 * most)


def test_tensor_float_where_it_is_asked_for(fake, gpu):
    x, w, f, _ = of("strides")

    def asked(x, w):
        with fg.default_matmul_precision("tensorfloat32"):
            return fg.jvp(f, (x, w), (x, w))

    def gradient(x, w):
        how = CASES["strides"][2] | {"precision": lax.Precision.HIGH}
        return fg.grad(lambda w: lax.conv_general_dilated(x, w, **how).sum())(w)

    want = np.asarray(f(rounded(x), rounded(w)))
    for got, scale in zip(on_fake(asked, fake, gpu, x, w)([x, w]), (1, 2), strict=True):
        np.testing.assert_allclose(got, scale * want, rtol=1e-5, atol=1e-5)
    exact = on_fake(f, fake, gpu, x, w)([x, w])[0]
    np.testing.assert_allclose(exact, f(x, w), rtol=1e-5, atol=1e-5)
    assert abs(exact - want).max() > 1e-4
    rest = fg.grad(lambda w: f(rounded(x), w).sum())(w)
    found = on_fake(gradient, fake, gpu, x, w)([x, w])[0]
    np.testing.assert_allclose(found, rest, rtol=1e-5, atol=1e-5)


def test_graphs(fake, gpu):
    """What is captured runs again, on the stream of the graph, without any new memory."""
    x, w, f, _ = of("first")
    program = on_fake(lambda x, w: fnp.tanh(f(x, w)), fake, gpu, x, w)
    given = [DeviceBuffer.of(gpu, v) for v in (x, w)]
    want = program(given)[0].get()
    called = fake.dnn_calls()
    for _ in range(4):
        np.testing.assert_array_equal(program(given)[0].get(), want)
    assert fake.fake_replays() == 4
    assert 1 <= program.graphs.captures == fake.dnn_calls() - called <= 2


def test_what_has_no_form_has_a_kernel(fake, gpu):
    """Grouped images' gradients with strides, other types, results of another type."""
    x, w = numbers(2, 4, 7, 7), numbers(6, 2, 3, 3)

    def grouped(x, w):
        how = {"window_strides": (2, 2), "padding": "VALID", "feature_group_count": 2}
        return fg.grad(lambda x: lax.conv_general_dilated(x, w, **how).sum())(x)

    def wide(x, w):
        return lax.conv_general_dilated(
            x.astype("bfloat16"), w[:, :, :2].astype("bfloat16"), (1, 1), "SAME",
            feature_group_count=2, preferred_element_type="float32",
        )  # fmt: skip

    for f in (grouped, wide):
        program = on_fake(f, fake, gpu, x, w)
        assert not calls(program)
        assert any(isinstance(s, KernelStep) for s in walk(program.program.steps))
        np.testing.assert_allclose(program([x, w])[0], fg.jit(f)(x, w), rtol=1e-4, atol=1e-4)


def test_without_an_algorithm_there_is_a_kernel(fake, gpu):
    x, w, f, _ = of("first")
    fake.dnn_refuse(3000)
    program = on_fake(f, fake, gpu, x, w)
    fake.dnn_refuse(0)
    assert not calls(program)
    np.testing.assert_allclose(program([x, w])[0], f(x, w), rtol=1e-4, atol=1e-4)


def test_without_the_library_there_are_kernels(fake, gpu):
    x, w, f, _ = of("last")
    program = on_fake(f, fake, Gpu(gpu.driver, gpu.blas), x, w)
    assert not calls(program)
    np.testing.assert_allclose(program([x, w])[0], f(x, w), rtol=1e-4, atol=1e-4)
    with pytest.raises(CudaError, match=r"no cuDNN \(libnothing.so\).*install nvidia-cudnn-cu13"):
        cudnn.Dnn(gpu.driver.stream, "libnothing.so")


@pytest.mark.parametrize("starts", [False, True])
def test_a_library_that_fails_at_its_start_is_none(starts, fake, gpu, monkeypatch):
    def refused(self):
        raise CudaError("cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED")

    x, w, f, _ = of("first")
    if starts:
        monkeypatch.setattr(cudnn.Dnn, "new_handle", refused)
    here = Gpu(gpu.driver, gpu.blas, cudnn=gpu.cudnn if starts else "libnothing.so")
    program = on_fake(f, fake, here, x, w)
    assert not calls(program)
    assert here.cudnn is None
    np.testing.assert_allclose(program([x, w])[0], f(x, w), rtol=1e-4, atol=1e-4)


def test_each_program_has_a_handle_which_is_the_nexts(fake, gpu):
    x, w, f, _ = of("first")
    handles = {cudnn.Handle(gpu.dnn).handle.value for _ in range(3)}
    assert len(handles) == 1
    first, second = (on_fake(f, fake, gpu, x, w) for _ in range(2))
    for program in (first, second):
        program([x, w])
    used = [p.loaded._dnn.handle.value for p in (first, second)]
    assert len({gpu.dnn.handle.value, *used}) == 3
    assert handles < {*used}


def test_captures_make_no_handles(fake, gpu):
    x, w, f, _ = of("first")
    program = on_fake(f, fake, gpu, x, w)
    program([x, w])
    alive = fake.dnn_alive()
    for _ in range(3):
        program([x, w])
    assert program.graphs.captures
    assert fake.dnn_alive() == alive


def test_a_call_that_fails_names_program_and_convolution(fake, gpu):
    x, w, f, _ = of("first")
    program = on_fake(f, fake, gpu, x, w)
    fake.dnn_fail(5000)
    with pytest.raises(CudaError, match=r"a convolution \(forward\) of 2x4x7x6 and 6x4x3x2: "
                       "CUDNN_STATUS_EXECUTION_FAILED"):  # fmt: skip
        program([x, w])
    fake.dnn_fail(0)
    np.testing.assert_allclose(program([x, w])[0], f(x, w), rtol=1e-4, atol=1e-4)
