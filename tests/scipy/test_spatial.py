"""Rotations against SciPy: every representation, composition, means, interpolation, derivatives."""

import numpy as np
import pytest
from scipy.spatial import transform as theirs

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random, tree
from funcgrad.scipy.spatial.transform import Rotation, Slerp

RNG = np.random.default_rng(0)
QUATS = RNG.normal(size=(20, 4))
ANGLES = RNG.uniform(-3, 3, (20, 3))
VECTORS = RNG.normal(size=(20, 3))
SEQUENCES = ("xyz", "zyx", "ZXY", "xzx", "XYX", "YZX", "zxz")


def same(ours, scipys):
    np.testing.assert_allclose(ours.as_matrix(), scipys.as_matrix(), atol=1e-12)


@pytest.fixture
def pair():
    return Rotation.from_quat(QUATS), theirs.Rotation.from_quat(QUATS)


@pytest.mark.parametrize("degrees", [False, True])
@pytest.mark.parametrize("seq", [*SEQUENCES, "x", "Z", "yx"])
def test_euler(seq, degrees, pair):
    angles = ANGLES[:, : len(seq)]
    ours = fg.jit(lambda a: Rotation.from_euler(seq, a, degrees))(angles)
    scipys = theirs.Rotation.from_euler(seq, angles, degrees)
    same(ours, scipys)
    if len(seq) == 3:
        middle = np.clip(angles[:, 1], 0.2, 1.3)
        scipys = theirs.Rotation.from_euler(seq, np.stack([angles[:, 0], middle, angles[:, 2]], 1))
        got = Rotation.from_quat(scipys.as_quat()).as_euler(seq, degrees)
        np.testing.assert_allclose(got, scipys.as_euler(seq, degrees), atol=1e-9)


@pytest.mark.parametrize("seq", SEQUENCES)
@pytest.mark.filterwarnings("ignore:Gimbal")
def test_locked_gimbals(seq):
    for middle in (0.0, np.pi) if seq[0] == seq[2] else (np.pi / 2, -np.pi / 2):
        scipys = theirs.Rotation.from_euler(seq, [0.3, middle, 0.4])
        got = Rotation.from_quat(scipys.as_quat()).as_euler(seq)
        same(Rotation.from_euler(seq, got), scipys)


def test_representations(pair):
    ours, scipys = pair
    same(ours, scipys)
    np.testing.assert_allclose(ours.as_quat(canonical=True), scipys.as_quat(canonical=True))
    np.testing.assert_allclose(ours.as_quat(scalar_first=True), scipys.as_quat(scalar_first=True))
    np.testing.assert_allclose(ours.as_rotvec(degrees=True), scipys.as_rotvec(degrees=True))
    np.testing.assert_allclose(ours.as_mrp(), scipys.as_mrp())
    np.testing.assert_allclose(ours.magnitude(), scipys.magnitude())
    for back in (
        Rotation.from_matrix(ours.as_matrix()), Rotation.from_rotvec(ours.as_rotvec()),
        Rotation.from_mrp(ours.as_mrp()), Rotation.concatenate([ours[:5], ours[5:]]),
        Rotation.from_rotvec(ours.as_rotvec(degrees=True), degrees=True),
    ):  # fmt: skip
        same(back, scipys)
    half_turns = theirs.Rotation.from_rotvec(np.pi * np.eye(3))
    same(Rotation.from_matrix(half_turns.as_matrix()), half_turns)
    tiny = np.array([1e-9, 2e-5, -3e-4])
    np.testing.assert_allclose(Rotation.from_rotvec(tiny).as_rotvec(), tiny, rtol=1e-12)


def test_what_rotations_do(pair):
    ours, scipys = pair
    np.testing.assert_allclose(ours.apply(VECTORS), scipys.apply(VECTORS))
    np.testing.assert_allclose(ours.apply(VECTORS, inverse=True), scipys.apply(VECTORS, True))
    np.testing.assert_allclose(ours[0].apply(VECTORS), scipys[0].apply(VECTORS))
    same(ours * ours[::-1], scipys * scipys[::-1])
    same(ours.inv(), scipys.inv())
    same(ours.mean(), scipys.mean())
    weights = RNG.uniform(1, 2, 20)
    same(ours.mean(weights), scipys.mean(weights))
    assert len(ours) == 20
    assert ours[3].single
    np.testing.assert_allclose(
        fg.vmap(lambda r, v: r.apply(v))(ours, VECTORS), scipys.apply(VECTORS)
    )
    assert tree.structure(ours) == tree.structure(ours.inv())


def test_identity_and_random():
    assert Rotation.identity(dtype="float64").quat.dtype == np.float64
    assert Rotation.identity(3).quat.shape == (3, 4)
    drawn = Rotation.random(random.key(0), 3000)
    np.testing.assert_allclose(np.asarray(drawn.as_matrix()).mean(0), 0, atol=0.05)
    assert Rotation.random(random.key(0)).single


def test_interpolation(pair):
    ours, scipys = pair
    times = np.sort(RNG.uniform(0, 1, 20))
    at = RNG.uniform(times[0], times[-1], 7)
    want = theirs.Slerp(times, scipys)(at)
    same(Slerp(times, ours)(at), want)
    same(fg.jit(lambda t: Slerp.init(times, ours)(t))(at[0]), want[0])


def test_derivatives():
    """Also at the identity, where the norm of a rotation vector has none."""
    for v in (np.zeros(3), VECTORS[0]):

        def turned(v):
            return Rotation.from_rotvec(v).apply(VECTORS[1])

        h = 1e-6
        want = [np.asarray(turned(v + h * e) - turned(v - h * e)) / (2 * h) for e in np.eye(3)]
        np.testing.assert_allclose(fg.jacrev(turned)(fnp.array(v)), np.array(want).T, atol=1e-8)
        back = fg.jacfwd(lambda v: Rotation.from_rotvec(v).as_rotvec())(fnp.array(v))
        np.testing.assert_allclose(back, np.eye(3), atol=1e-9)
    slope = fg.grad(lambda q: Rotation.from_quat(q).magnitude())(fnp.array([0.0, 0, 0, 1]))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rotation.from_euler("xyw", ANGLES), "seq must be 1 to 3 .* 'xyw'"),
        (lambda: Rotation.from_euler("xxy", ANGLES), "neighbours differ, got 'xxy'"),
        (lambda: Rotation.from_euler("xyz", ANGLES[:, :2]), r"angles must be \(..., 3\)"),
        (lambda: Rotation.identity().as_euler("xy"), "seq must be 3"),
        (lambda: Rotation.from_quat(np.ones(3)), r"quat must be \(..., 4\), got \(3,\)"),
        (lambda: Rotation.from_matrix(np.ones((3, 2))), r"matrix must be \(..., 3, 3\)"),
        (lambda: Rotation.from_rotvec("a"), "from_rotvec: rotvec"),
        (lambda: Rotation.identity(3).mean(np.ones(2)), r"weights must be \(3,\)"),
        (lambda: Slerp([0, 1], 3), "rotations must be a Rotation, got int"),
        (lambda: Slerp([0, 1, 2], Rotation.identity(2)), r"times must be \(2,\)"),
        (lambda: len(Rotation.identity()), "no len"),
        (lambda: Rotation.identity()[0], "no items"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
