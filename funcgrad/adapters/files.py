"""Adapters in the files of Hugging Face's PEFT: `adapter_model.safetensors` for the factors,
`adapter_config.json` for what was chosen.

PEFT keeps factors as torch's layers have weights: A of shape (rank, in), B of shape (out, rank). A
stack of weights is a file's layers one by one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.adapters.adapter import Adapter
from funcgrad.core.array import raw
from funcgrad.errors import CheckpointError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
_BASES = "funcgrad-bases"  # in the file's metadata, of which PEFT takes no notice

# The name of a module, of a leaf's name and the place in its stack (() where it is none).
Naming = Callable[[str, tuple[int, ...]], str]


def module_name(leaf: str, place: tuple[int, ...]) -> str:
    """What a leaf's module is called, if nothing else is said: its name without ".weight", ".w" or
    ".kernel" at the end, and its places in a stack behind the first part.

    >>> module_name("model.q_proj.weight", ()), module_name("layers.q.w", (3,))
    ('model.q_proj', 'layers.3.q')
    """
    parts = leaf.split(".")
    if len(parts) > 1 and parts[-1] in ("weight", "w", "kernel"):
        parts = parts[:-1]
    return ".".join([parts[0], *map(str, place), *parts[1:]])


def save_adapters(
    folder: str | Path, adapters: Mapping[str, Adapter], naming: Naming = module_name
) -> None:
    """Write adapters (of `fg.lora`) as PEFT does, into a folder, which is made.

    naming(leaf, place) gives the name of the module that PEFT knows for a leaf, and for a place in
    its stack. Raises ValueError where adapters are of several ranks, alphas or kinds, which the
    files have no place for.

    >>> import tempfile
    >>> f = lambda params, x: x @ params["proj"]
    >>> _, _, adapters = fg.lora(f, {"proj": fnp.ones((4, 3))}, "proj", random.key(0), rank=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_adapters(folder, adapters)
    ...     bool((load_adapters(folder, adapters)["proj"].a == adapters["proj"].a).all())
    True
    """
    from safetensors.numpy import save_file

    kinds = {(a.rank, a.alpha, a.kind) for a in adapters.values()}
    if len(kinds) != 1:
        raise ValueError(
            "save_adapters: PEFT's files are of one rank, alpha and kind, the adapters are of "
            f"{sorted(kinds)}; save them one kind a folder"
        )
    rank, alpha, kind = kinds.pop()
    tensors, modules = {}, []
    for leaf, adapter in adapters.items():
        for place in _places(adapter):
            module = naming(leaf, place)
            modules.append(module)
            for key, x in _tensors(adapter, place).items():
                tensors[f"{_PREFIX}{module}.{key}"] = np.ascontiguousarray(x)
    if len(set(modules)) < len(modules):
        raise ValueError(f"save_adapters: naming gives one name to several weights: {modules}")
    config = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None,
        "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(modules), "fan_in_fan_out": False, "init_lora_weights": True,
        "inference_mode": True, "modules_to_save": None,
        "use_rslora": kind == "rslora", "use_dora": kind == "dora",
    }  # fmt: skip
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    bases = {leaf: a.base for leaf, a in adapters.items() if a.base}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", _BASES: json.dumps(bases)})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapters(
    folder: str | Path, like: Mapping[str, Adapter], naming: Naming = module_name
) -> dict[str, Adapter]:
    """Adapters from a folder of PEFT's, for the leaves and along the axes of those in `like`.

    Ranks, alpha and kind are the file's, and so is the base's fingerprint, if it has one. Raises
    CheckpointError where the folder has no such files, lacks a leaf's factors, has others than
    `like`, or has them in shapes that don't fit.

    >>> import tempfile
    >>> f = lambda params, x: x @ params["proj"]
    >>> _, _, like = fg.lora(f, {"proj": fnp.ones((4, 3))}, "proj", random.key(0), rank=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_adapters(folder, like)
    ...     load_adapters(folder, like)["proj"].rank
    2
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        with safe_open(folder / WEIGHTS, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            bases = json.loads((file.metadata() or {}).get(_BASES, "{}"))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"load_adapters: {folder} has no adapters to read: {error}"
        ) from error
    alpha, kind = _kind(folder, config)
    loaded, used = {}, set()
    for leaf, adapter in like.items():
        pieces = []
        for place in _places(adapter):
            prefix = f"{_PREFIX}{naming(leaf, place)}."
            wanted = _keys(adapter, kind)
            missing = [prefix + k for k in wanted if prefix + k not in tensors]
            if missing:
                raise CheckpointError(
                    f"load_adapters: {folder / WEIGHTS} has no {missing[0]}, for the leaf {leaf}; "
                    f"it has {', '.join(sorted(tensors)[:4])}, … (naming= gives other names)"
                )
            used |= {prefix + k for k in wanted}
            pieces.append([tensors[prefix + k] for k in wanted])
        base = str(bases.get(leaf, adapter.base)) if isinstance(bases, dict) else adapter.base
        loaded[leaf] = replace(_joined(leaf, adapter, pieces, alpha, kind), base=base)
    rest = sorted(set(tensors) - used)
    if rest:
        raise CheckpointError(
            f"load_adapters: {folder / WEIGHTS} has also {rest[0]} ({len(rest)} tensors in all), "
            "which are of none of the leaves in like"
        )
    return loaded


def _kind(folder: Path, config: Any) -> tuple[float, str]:
    known = isinstance(config, dict) and config.get("peft_type") == "LORA"
    alpha = config.get("lora_alpha", 8) if known else None
    if not isinstance(alpha, int | float):
        raise CheckpointError(
            f"load_adapters: {folder / CONFIG} must have peft_type LORA and a number lora_alpha, "
            f"it is {str(config)[:200]}"
        )
    for name in ("alpha_pattern", "rank_pattern"):
        if config.get(name):
            raise CheckpointError(
                f"load_adapters: {folder / CONFIG} has {name} {config[name]}, adapters of several "
                "kinds in one file, which aren't read"
            )
    both = config.get("use_dora"), config.get("use_rslora")
    if all(both):
        raise CheckpointError(f"load_adapters: {folder / CONFIG} asks for DoRA and rsLoRA at once")
    return float(alpha), "dora" if both[0] else "rslora" if both[1] else "lora"


def _n_stack(adapter: Adapter) -> int:
    return adapter.a.ndim - 1 - len(adapter.ins)


def _places(adapter: Adapter) -> Iterator[tuple[int, ...]]:
    """The places in a stack of weights; one, (), of a weight that is none."""
    return itertools.product(*map(range, adapter.a.shape[: _n_stack(adapter)]))


def _keys(adapter: Adapter, kind: str) -> list[str]:
    if adapter.lookup:
        return ["lora_embedding_A", "lora_embedding_B"]
    more = ["lora_magnitude_vector"] if kind == "dora" else []
    return ["lora_A.weight", "lora_B.weight", *more]


def _is_kernel(adapter: Adapter) -> bool:
    return len(adapter.ins) > 2 and len(adapter.outs) == 1


def _order(adapter: Adapter) -> list[int]:
    """Where the axes of A come from in torch's order: rank, channels, then what a kernel covers."""
    n = len(adapter.ins)
    # Channels are in front of the covered axes if the result's are, and else behind them.
    first = adapter.outs[0] < adapter.ins[0]
    return [n, *range(n)] if first or n == 1 else [n, n - 1, *range(n - 1)]


def _tensors(adapter: Adapter, place: tuple[int, ...]) -> dict[str, np.ndarray]:
    a, b = (np.asarray(raw(fnp.asarray(x)[place])) for x in (adapter.a, adapter.b))
    arrays = [
        a.transpose(_order(adapter)) if _is_kernel(adapter) else a.reshape(-1, a.shape[-1]).T,
        b.reshape(b.shape[0], -1).T,
    ]
    if _is_kernel(adapter):
        arrays[1] = arrays[1].reshape(*arrays[1].shape, *[1] * (len(adapter.ins) - 1))
    if adapter.magnitude is not None:
        magnitude = np.asarray(raw(fnp.asarray(adapter.magnitude)[place]))
        ones = [1] * (len(adapter.ins) - 1)
        arrays.append(magnitude.reshape(1, -1, *ones) if _is_kernel(adapter) else magnitude.ravel())
    return dict(zip(_keys(adapter, adapter.kind), arrays, strict=True))


def _joined(
    leaf: str, like: Adapter, pieces: list[list[np.ndarray]], alpha: float, kind: str
) -> Adapter:
    n, n_stack = len(like.ins), _n_stack(like)
    stack, ins = like.a.shape[:n_stack], like.a.shape[n_stack:-1]
    outs = like.b.shape[n_stack + 1 :]
    rank = pieces[0][0].shape[0]
    arrays = []
    for i, shape in enumerate([(*ins, rank), (rank, *outs), outs][: len(pieces[0])]):
        rows = []
        for piece in pieces:
            x = piece[i]
            if i == 0 and _is_kernel(like) and x.ndim == n + 1:
                x = x.transpose(np.argsort(_order(like)))
            elif i < 2:
                x = x.reshape(x.shape[0], -1).T
            expected = int(np.prod(shape))
            fits = x.size == expected and (i == 2 or x.shape[-1] == (rank, outs[-1])[i] or n > 1)
            if not fits:
                raise CheckpointError(
                    f"load_adapters: the leaf {leaf} needs {('A', 'B', 'a magnitude')[i]} of "
                    f"{expected} elements for rank {rank}, the file's has shape {piece[i].shape}"
                )
            rows.append(x.reshape(shape))
        arrays.append(fnp.asarray(np.stack(rows).reshape(*stack, *shape)))
    magnitude = arrays[2] if kind == "dora" else None
    return replace(like, a=arrays[0], b=arrays[1], magnitude=magnitude, alpha=alpha, kind=kind)
