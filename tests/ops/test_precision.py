"""What `precision` means where an operation doesn't say it."""

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

X, K = fnp.ones((1, 1, 4, 4)), fnp.ones((1, 1, 3, 3))


def exact(**kwargs):
    """Whether a convolution's equation asks for sums of products."""
    conv = fg.make_jaxpr(lambda x: lax.conv(x, K, (1, 1), "VALID", **kwargs))(X).jaxpr
    return conv.eqns[0].params["exact"]


def test_the_setting_is_for_what_says_nothing():
    assert not exact()
    with fg.default_matmul_precision("highest"):
        assert exact()
        assert not exact(precision="default")
        with fg.default_matmul_precision(None):
            assert not exact()
    with fg.default_matmul_precision("bfloat16"):
        assert not exact()
    assert fg.default_matmul_precision("float32")(exact)()
    fg.default_matmul_precision("float32")
    try:
        assert exact()
    finally:
        fg.default_matmul_precision(None)
    assert not exact()


def test_jit_traces_anew_under_another_setting():
    conv = fg.jit(lambda x: lax.conv(x, K, (1, 1), "VALID"))
    conv(X)
    with fg.default_matmul_precision("highest"):
        conv(X)
    assert conv.cache_info().misses == 2


def test_what_may_be_rounded_has_gradients_that_may_be():
    def loss(x, k):
        return lax.conv(x, k, (1, 1), "VALID", precision="high").sum()

    made = str(fg.make_jaxpr(fg.grad(loss, (0, 1)))(X, K))
    assert made.count("precision=tensorfloat32") == made.count("conv_general_dilated") == 3
    assert "precision=" not in str(fg.make_jaxpr(lambda x: lax.conv(x, K, (1, 1), "VALID"))(X))


@pytest.mark.parametrize("bad", ["exact", 3, lax.Precision.HIGHEST])
def test_bad_precision(bad):
    with pytest.raises(ValueError, match="default_matmul_precision: precision must be None"):
        fg.default_matmul_precision(bad)
    assert not exact()
