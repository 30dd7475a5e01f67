"""What the backward pass keeps, in words."""

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.ad_checkpoint import checkpoint_policies, print_saved_residuals, saved_residuals


def layer(w, x):
    h = fg.checkpoint_name(fnp.tanh(x @ w), "hidden")
    return fnp.sum(fnp.sin(h))


W, X = fnp.ones((2, 4)), fnp.ones((3, 2))


def kept(f, *args):
    return [str(aval) for aval, _ in saved_residuals(f, *args)]


def test_arguments_and_results_are_told_with_their_places():
    found = {text.split(",")[0]: str(aval) for aval, text in saved_residuals(layer, W, X)}
    assert found["the argument w"] == "f32[2,4]"
    assert found["the argument x"] == "f32[3,2]"
    assert found["the result of cos"] == "f32[3,4]"
    places = [text for _, text in saved_residuals(layer, W, X) if "from" in text]
    assert places
    assert all("test_ad_checkpoint.py:" in text for text in places)


def test_policies_change_what_is_kept():
    policies = checkpoint_policies
    assert kept(fg.checkpoint(layer), W, X) == ["f32[3,2]", "f32[2,4]"]
    named = fg.checkpoint(layer, policy=policies.save_only_these_names("hidden"))
    assert sorted(kept(named, W, X)) == ["f32[2,4]", "f32[3,2]", "f32[3,4]"]
    offloaded = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip
    assert kept(fg.checkpoint(layer, policy=offloaded), W, X) == kept(named, W, X)
    dots = [policies.checkpoint_dots_with_no_batch_dims,
            policies.offload_dot_with_no_batch_dims("device", "pinned_host")]  # fmt: skip
    for policy in dots:
        assert len(kept(fg.checkpoint(layer, policy=policy), W, X)) == 3
    but = fg.checkpoint(layer, policy=policies.save_anything_except_these_names("hidden"))
    assert len(kept(but, W, X)) > 2


@pytest.mark.parametrize("policy", ["everything_saveable", "nothing_saveable", "checkpoint_dots"])
def test_gradients_are_the_same_whatever_is_kept(policy):
    f = fg.checkpoint(layer, policy=getattr(checkpoint_policies, policy))
    assert fnp.allclose(fg.grad(f)(W, X), fg.grad(layer)(W, X), rtol=1e-6)


def test_printing(capsys):
    print_saved_residuals(lambda x, y: x * y, 2.0, 3.0)
    assert capsys.readouterr().out == "f32[] the argument y\nf32[] the argument x\n"


def test_captured_arrays():
    big = fnp.ones(5)
    texts = [text for _, text in saved_residuals(lambda x: fnp.sum(x * big), fnp.ones(5))]
    assert "a captured array" in texts


def test_arguments_that_are_no_arrays():
    with pytest.raises(TypeError, match="saved_residuals of layer: argument w must be an array"):
        saved_residuals(layer, "w", X)
