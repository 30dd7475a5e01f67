"""Convolutions over ranks: batch, features or channels are cut; places and windows stay whole."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.ops.sharding import sharding_constraint_p
from tests.parallel.models import normal
from tests.parallel.partitioned import checked, counts, partitioned, run

MESH, GRID = AbstractMesh((2,), ("x",)), AbstractMesh((2, 2), ("x", "y"))
LAYOUTS = {"NCHW": ("NCHW", "OIHW", "NCHW"), "NHWC": ("NHWC", "HWIO", "NHWC")}
SIZES = {"N": 4, "I": 8, "O": 12, "H": 6, "W": 4}
OPTIONS = {
    "plain": {"padding": "SAME"},
    "strided": {"padding": [(1, 0), (2, 1)], "window_strides": (2, 1)},
    "dilated": {"padding": [(2, 2), (1, 1)], "rhs_dilation": (2, 1), "lhs_dilation": (1, 2)},
    "exact": {"padding": "VALID", "precision": "highest"},
}
layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
options = pytest.mark.parametrize("options", list(OPTIONS))


def convolution(layout, options="plain"):
    kw = {"window_strides": (1, 1), **OPTIONS[options]}
    return lambda x, w: lax.conv_general_dilated(x, w, **kw, dimension_numbers=LAYOUTS[layout])


def axes(layout):
    """The axes of images, kernel and results: batch N, places H and W, channels I, features O."""
    images, kernel, results = LAYOUTS[layout]
    return images.replace("C", "I"), kernel, results.replace("C", "O")


def given(layout, options="plain"):
    """Images, a kernel of 3x3, and a gradient of results."""
    images, kernel, _ = axes(layout)
    x = normal(*(SIZES[a] for a in images))
    w = normal(*({**SIZES, "H": 3, "W": 3}[a] for a in kernel), seed=1)
    shape = fg.eval_shape(convolution(layout, options), x, w).shape
    return [x, w, normal(*shape, seed=2)]


def cuts(layout, cut):
    """Specs of images, kernel and results, where axes are cut over those of the mesh."""
    return [P(*(cut.get(a) if (a, i) not in (("H", 1), ("W", 1)) else None for a in names))
            for i, names in enumerate(axes(layout))]  # fmt: skip


def found(fun, args, specs, mesh=MESH):
    """The collectives of a function of arrays that are cut, whose results are as uncut."""
    program, jaxpr, args = partitioned(lambda *xs: list(fun(*xs)), args, mesh, specs)
    checked(program)
    want = interpret(jaxpr, np, *map(np.asarray, args))
    for g, w in zip(run(program, args), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
    return counts(program)


def forward(layout, options="plain"):
    conv = convolution(layout, options)
    return lambda x, w: [conv(x, w)]


def gradient(layout, options, argnum):
    conv = convolution(layout, options)
    return lambda x, w, g: [fg.vjp(conv, x, w)[1](g)[argnum]]


@layouts
@options
@pytest.mark.parametrize(
    ("cut", "of_results", "of_images", "of_kernel"),
    [
        ("N", {}, {}, {"psum": 1}),
        ("O", {}, {"psum": 1}, {}),
        ("I", {"psum": 1}, {}, {}),
    ],
    ids=["batch", "features", "channels"],
)
def test_what_is_summed_is_what_was_contracted(
    layout, options, cut, of_results, of_images, of_kernel
):
    args, specs = given(layout, options), cuts(layout, {cut: "x"})
    assert found(forward(layout, options), args[:2], specs[:2]) == of_results
    assert found(gradient(layout, options, 0), args, specs) == of_images
    assert found(gradient(layout, options, 1), args, specs) == of_kernel


@layouts
@pytest.mark.parametrize(
    ("cut", "of_results", "of_images", "of_kernel"),
    [
        ({"N": "x", "O": "y"}, {}, {"psum": 1}, {"psum": 1}),
        ({"N": "x", "I": "y"}, {"psum": 1}, {}, {"psum": 1}),
        ({"O": "x", "I": "y"}, {"psum": 1}, {"psum": 1}, {}),
        ({"N": ("x", "y")}, {}, {}, {"psum": 1}),
        ({"I": ("x", "y")}, {"psum": 1}, {}, {}),
    ],
    ids=str,
)
def test_two_axes_of_a_mesh(layout, cut, of_results, of_images, of_kernel):
    args, specs = given(layout), cuts(layout, cut)
    assert found(forward(layout), args[:2], specs[:2], GRID) == of_results
    assert found(gradient(layout, "plain", 0), args, specs, GRID) == of_images
    assert found(gradient(layout, "plain", 1), args, specs, GRID) == of_kernel


@layouts
@options
@pytest.mark.parametrize("places", ["H", "W"])
def test_images_whose_places_are_cut_are_gathered(layout, options, places):
    args = given(layout, options)
    specs = cuts(layout, {places: "x"})
    if args[2].shape[axes(layout)[2].index(places)] % 2:
        specs[2] = P()
    gathered = {"all_gather": 1}
    assert found(forward(layout, options), args[:2], specs[:2]) == gathered
    of_both = lambda x, w, g: fg.vjp(convolution(layout, options), x, w)[1](g)
    assert found(of_both, args, specs) == {"all_gather": 1 + (specs[2] != P())}


@layouts
def test_results_are_cut_as_is_asked(layout):
    """A sum over devices whose result is wanted cut is scattered."""
    args, specs = given(layout), cuts(layout, {"I": "x"})
    for cut in "NO":
        wanted = NamedSharding(MESH, cuts(layout, {cut: "x"})[2])
        fun = lambda x, w, s=wanted: [
            sharding_constraint_p.bind(convolution(layout)(x, w), sharding=s)
        ]
        assert found(fun, args[:2], specs[:2]) == {"psum_scatter": 1}


def test_groups():
    """Of convolutions in groups, devices share the batch; features that are cut are gathered."""
    x, w = normal(4, 8, 6, 5), normal(12, 2, 3, 3, seed=1)
    conv = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=4)
    both = lambda x, w: fg.grad(lambda *xs: fnp.sum(conv(*xs) ** 2), (0, 1))(x, w)
    assert found(lambda x, w: [conv(x, w)], [x, w], [P("x"), P()]) == {}
    assert found(both, [x, w], [P("x"), P()]) == {"psum": 1}
    assert found(lambda x, w: [conv(x, w)], [x, w], [P(), P("x")]) == {"all_gather": 1}
    assert found(lambda x, w: [conv(x, w)], [x, w], [P(None, "x"), P()]) == {"all_gather": 1}


def loss(layout, w, v, x, y):
    """Of two layers, the mean over places, and what is wanted of features."""
    conv, places = convolution(layout), [axes(layout)[0].index(a) for a in "HW"]
    h = nn.relu(conv(x, w))
    h = conv(h, v).mean(places)
    return fnp.mean((h - y) ** 2)


def network(layout):
    kernel = axes(layout)[1]
    sizes = {"I": 8, "O": 12, "H": 3, "W": 3}
    w = normal(*(sizes[a] for a in kernel))
    v = normal(*({**sizes, "I": 12, "O": 4}[a] for a in kernel), seed=1)
    return [w, v, given(layout)[0], normal(4, 4, seed=2)]


@layouts
def test_training(layout):
    """Gradients of a net: data parallel, by features as in tensor parallel products, or both."""
    step = lambda *xs: fg.grad(lambda w, v: loss(layout, w, v, *xs[2:]), (0, 1))(*xs[:2])
    args, kernel = network(layout), axes(layout)[1]
    outer, inner = (P(*(a if n == cut else None for n in kernel))
                    for cut, a in (("O", "y"), ("I", "y")))  # fmt: skip
    assert found(step, args, [P(), P(), P("x"), P("x")], GRID) == {"psum": 2}
    assert found(step, args, [outer, inner, P(), P()], GRID) == {"psum": 1}
    assert found(step, args, [outer, inner, P("x"), P("x")], GRID) == {"psum": 3}
