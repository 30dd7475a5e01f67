"""Adapters against PEFT's own models, where it is installed: the same results with the same
adapters, whoever made and saved them.
"""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, random, tree
from funcgrad.adapters import load_adapters, save_adapters

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

WORDS, WIDTH, INNER, LAYERS = 23, 16, 24, 2
IDS = np.array([[1, 2, 3, 22, 0, 7], [4, 4, 9, 10, 11, 12]])


class Block(torch.nn.Module):
    """Two layers and a residual."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, INNER)
        self.down = torch.nn.Linear(INNER, WIDTH)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(h)))


class Model(torch.nn.Module):
    """Words, a convolution along them, layers, words again."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.mix = torch.nn.Conv2d(1, 1, (3, 5), padding="same", bias=False)
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        h = self.mix(self.words(ids)[:, None])[:, 0]
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def model(p, ids):
    """The same function; layers are a stack, as loops want them."""
    h = lax.conv_general_dilated(p["words.weight"][ids][:, None], p["mix.weight"], (1, 1), "SAME")

    def layer(h, w):
        inner = nn.relu(h @ w["up.weight"].swapaxes(-1, -2) + w["up.bias"])
        return h + inner @ w["down.weight"].swapaxes(-1, -2) + w["down.bias"], None

    h = lax.scan(layer, h[:, 0], p["layers"])[0]
    return h @ p["head.weight"].T


def params_of(module):
    """torch's parameters as ours."""
    state = {k: v.detach().numpy() for k, v in module.state_dict().items()}
    stacks = {}
    for key in [k for k in state if k.startswith("layers.0.")]:
        name = key.removeprefix("layers.0.")
        stacks[name] = fnp.stack([state.pop(f"layers.{i}.{name}") for i in range(LAYERS)])
    return {**{k: fnp.asarray(v) for k, v in state.items()}, "layers": stacks}


KINDS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}
# PEFT's files have no magnitudes of embeddings.
CHOSEN = {kind: ["up", "down", "head", *(["words", "mix"] * (kind != "dora"))] for kind in KINDS}


def theirs(base, kind, seed=0):
    """PEFT's model, with factors that aren't zero."""
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=CHOSEN[kind], **KINDS[kind])
    module = peft.get_peft_model(base, config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, x in module.named_parameters():
        if "lora_" in name and "magnitude" not in name:
            x.data = 0.2 * torch.randn(x.shape, generator=generator)
    return module


def ours(params, kind):
    rules = [rf"(^|\.){name}\.weight" for name in CHOSEN[kind]]
    return fg.lora(model, params, rules, random.key(0), rank=5, kind=kind, inputs=(IDS,))


@pytest.fixture
def base():
    torch.manual_seed(1)
    return Model()


def logits(module):
    with torch.no_grad():
        return module(torch.from_numpy(IDS)).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_its_adapters_give_its_logits(base, kind, tmp_path):
    params, plain = params_of(base), logits(base)
    np.testing.assert_allclose(model(params, IDS), plain, rtol=1e-5, atol=1e-5)
    module = theirs(base, kind)
    module.save_pretrained(tmp_path)
    lf, kept, like = ours(params, kind)
    adapters = load_adapters(tmp_path, like)
    want = logits(module)
    assert np.abs(want - plain).max() > 0.1
    np.testing.assert_allclose(fg.jit(lf)(kept, adapters, IDS), want, rtol=1e-4, atol=1e-5)
    merged = fg.lora_merge(kept, adapters, of_another_base=True)
    np.testing.assert_allclose(model(merged, IDS), want, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        again = params_of(module.merge_and_unload())
    for a, b in zip(tree.leaves(merged), tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_loads_ours(base, kind, tmp_path):
    lf, kept, adapters = ours(params_of(base), kind)
    keys = iter(random.split(random.key(3), 64))
    adapters = tree.map(lambda x: x + 0.2 * random.normal(next(keys), x.shape), adapters)
    save_adapters(tmp_path, adapters)
    module = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    want = np.asarray(lf(kept, adapters, IDS))
    np.testing.assert_allclose(logits(module), want, rtol=1e-4, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_gradients_of_factors_are_its_own(base, kind, tmp_path):
    params = params_of(base)
    module = theirs(base, kind).train()
    module.save_pretrained(tmp_path)
    lf, kept, like = ours(params, kind)
    adapters = load_adapters(tmp_path, like)
    (module(torch.from_numpy(IDS)) ** 2).sum().backward()
    grads = fg.grad(lambda a: fnp.sum(lf(kept, a, IDS) ** 2))(adapters)
    found = {n: x.grad.numpy() for n, x in module.named_parameters() if x.grad is not None}
    prefix = "base_model.model.layers.1.up"
    own = grads["layers.up.weight"]
    np.testing.assert_allclose(
        own.a[1].T, found[f"{prefix}.lora_A.default.weight"], rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(
        own.b[1].T, found[f"{prefix}.lora_B.default.weight"], rtol=1e-3, atol=1e-3
    )
    if kind == "dora":
        # Its magnitudes are numbers of each result; their norms it takes as constants, as we do.
        np.testing.assert_allclose(
            np.ravel(own.magnitude[1]),
            found[f"{prefix}.lora_magnitude_vector.default.weight"].ravel(), rtol=1e-3, atol=1e-3,
        )  # fmt: skip
