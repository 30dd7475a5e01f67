"""What is served: functions of named, typed inputs; and repositories, by name and version."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from funcgrad import tree
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.export.exported import load
from funcgrad.export.onnx import from_onnx
from funcgrad.export.onnx.model import dotted
from funcgrad.serve.generation import MANIFEST, Generator, load_generator
from funcgrad.serve.limits import check_name
from funcgrad.serve.protocol import NAMES, RequestError
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import eval_shape

ANY = -1
CLOSE = 0.01  # of a result's size: how far it may be from what it was on another processor


class Spec(NamedTuple):
    """A tensor's name, dtype, and shape, -1 where a size is any."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def described(self) -> dict[str, Any]:
        """As the protocol says it."""
        return {"name": self.name, "datatype": NAMES[self.dtype], "shape": list(self.shape)}

    def check(self, value: np.ndarray) -> None:
        """Raise RequestError unless an array is of this type."""
        fits = value.dtype == self.dtype and len(value.shape) == len(self.shape)
        if fits:
            for given, wanted in zip(value.shape, self.shape, strict=True):
                fits = fits and wanted in (ANY, given)
        if not fits:
            raise RequestError(
                f"the input {self.name!r} must be {NAMES[self.dtype]} of shape {list(self.shape)}, "
                f"got {NAMES[value.dtype]} of shape {list(value.shape)}"
            )


class Model:
    """A function that is served.

    fun(*inputs) gives an array or a tree of them; inputs: {name: (dtype, shape)} in the order of
    its arguments, with -1 for the axis 0 of batches. It is compiled for each size that it meets.
    check: is called before the model is served, and raises where it isn't what it should be.
    Raises ArgumentError where the types are none that the protocol has, or the function doesn't
    take them.

    >>> from funcgrad.serve import Model
    >>> double = Model("double", lambda x: {"y": 2 * x}, {"x": ("float32", (-1, 3))})
    >>> double.outputs, double.is_batched
    ([Spec(name='output.y', dtype=dtype('float32'), shape=(-1, 3))], True)
    >>> double.run([np.ones((2, 3), "float32")])["output.y"].shape
    (2, 3)
    """

    def __init__(
        self, name: str, fun: Callable, inputs: Mapping[str, tuple[Any, Sequence[int]]],
        version: str = "1", check: Callable[[], None] | None = None,
    ):  # fmt: skip
        check_name("Model", name, version)
        self.name, self.version, self._check = name, version, check
        if not isinstance(inputs, Mapping):
            raise ArgumentError(
                f"Model: {name}: inputs are {{name: (dtype, shape)}}, got {inputs!r}"
            )
        self.inputs = [_spec(name, k, given) for k, given in inputs.items()]
        self._fun = jit(fun)
        first, second = (self._outputs(fun, n) for n in (2, 3))
        self.outputs = [
            Spec(a, d, tuple(n if n == m else ANY for n, m in zip(s, t, strict=True)))
            for (a, d, s), (_, _, t) in zip(first, second, strict=True)
        ]
        for spec in (*self.inputs, *self.outputs):
            if spec.dtype not in NAMES:
                raise ArgumentError(
                    f"Model: {name}: {spec.name} is {spec.dtype}, which the protocol doesn't have"
                )
        every = [*self.inputs, *self.outputs]
        self.is_batched = all(s.shape and s.shape[0] == ANY for s in every)

    def _outputs(self, fun: Callable, size: int) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
        given = [
            ShapeDtypeStruct(tuple(size if n == ANY else n for n in s.shape), s.dtype)
            for s in self.inputs
        ]
        found = tree.flatten_with_path(eval_shape(fun, *given))[0]
        return [(dotted(f"output{tree.keystr(p)}"), x.dtype, x.shape) for p, x in found]

    def described(self, versions: Sequence[str]) -> dict[str, Any]:
        """As the protocol says it."""
        return {
            "name": self.name, "versions": list(versions), "platform": "funcgrad",
            "inputs": [s.described() for s in self.inputs],
            "outputs": [s.described() for s in self.outputs],
        }  # fmt: skip

    def arguments(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The inputs of a request in order, checked."""
        if len(given) != len(self.inputs) or not all(s.name in given for s in self.inputs):
            names = [s.name for s in self.inputs]
            raise RequestError(f"{self.name} needs the inputs {names}, got {sorted(given)}")
        values = [given[s.name] for s in self.inputs]
        for spec, value in zip(self.inputs, values, strict=True):
            spec.check(value)
        if self.is_batched and len({v.shape[0] for v in values}) > 1:
            raise RequestError(f"the inputs of {self.name} differ in their first axis")
        return values

    def run(self, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The results by name."""
        outs = tree.leaves(self._fun(*values))
        return {s.name: np.asarray(x) for s, x in zip(self.outputs, outs, strict=True)}

    def warm_up(self, sizes: Sequence[int] = (1,)) -> None:
        """Compile for batches of these sizes, on zeros, and check what it computes."""
        for n in sizes if self.is_batched else (1,):
            self.run([np.zeros([n if m == ANY else m for m in s.shape], s.dtype)
                      for s in self.inputs])  # fmt: skip
        if self._check is not None:
            self._check()


def _spec(model: str, name: str, given: Any) -> Spec:
    """An input's type as it was given."""
    spec: Spec | None = None
    with contextlib.suppress(TypeError, ValueError):
        dtype, shape = given
        # Of None, NumPy makes float64.
        if isinstance(name, str) and dtype is not None:
            spec = Spec(name, np.dtype(dtype), tuple(map(operator.index, shape)))
    if spec is None or min(spec.shape, default=0) < ANY:
        raise ArgumentError(
            f"Model: {model}: the input {name!r} must be (dtype, shape), such as "
            f"('float32', (-1, 4)), and its name a text; got {given!r}"
        )
    return spec


Served = Model | Generator
SUFFIXES = (".fg", ".onnx")


def load_model(path: str | Path, name: str | None = None, version: str = "1") -> Served:
    """The model in a file, by its suffix: `.fg`, as `Exported.save` writes it, or `.onnx`; or the
    `Generator` in a folder, as `save_generator` writes it.

    The inputs of an exported function have the names of its arguments; of sizes with names, any
    is taken.

    >>> from funcgrad.serve import load_model
    >>> load_model("model.bin")
    Traceback (most recent call last):
      ...
    funcgrad.errors.FormatError: load_model: model.bin is no .fg or .onnx file
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        return load_generator(path, name or path.name, version)
    if path.suffix not in SUFFIXES:
        raise FormatError(f"load_model: {path} is no {' or '.join(SUFFIXES)} file")
    if path.suffix == ".fg":
        return _exported(path, name or path.stem, version)
    f, params = from_onnx(path)
    inputs = {n: (d, s) for n, d, s in f.signature}  # type: ignore[attr-defined]
    return Model(name or path.stem, lambda *xs: f(params, *xs), inputs, version)


def _exported(path: Path, name: str, version: str) -> Model:
    """The model of an exported function, whose arguments' leaves are the inputs."""
    exported = load(path)
    inputs = {
        dotted(arg): (a.dtype, [n if isinstance(n, int) else ANY for n in a.shape])
        for arg, a in zip(exported.arg_names, exported.in_avals, strict=True)
    }

    def fun(*leaves: Any) -> Any:
        args, kwargs = exported.in_tree.unflatten(leaves)
        return exported.call(*args, **kwargs)

    def check() -> None:
        if (differ := exported.check_samples()) > CLOSE:
            raise FormatError(
                f"{path} gives results that differ from its samples' by {differ:.2g} of their size"
            )

    return Model(name, fun, inputs, version, check)


class Repository:
    """Models by name and version; a new one takes the place of an old one between two requests.

    sizes: of batches that those from files are compiled for before they are served;
        without any they are compiled when they are asked

    >>> from funcgrad.serve import Model, Repository
    >>> models = Repository([Model("double", lambda x: 2 * x, {"x": ("float32", (-1,))})])
    >>> models.get("double").version
    '1'
    """

    def __init__(self, models: Sequence[Served] = (), sizes: Sequence[int] = (1,)):
        self.sizes = sizes
        self._models: dict[str, dict[str, Served]] = {}  # the latest version is the last one
        self._lock = threading.Lock()
        self.paths: dict[str, Path] = {}
        for model in models:
            self.put(model)

    def put(self, model: Served) -> None:
        """Serve a model from now on, in place of one of the same name and version."""
        if not isinstance(model, Served):
            raise ArgumentError(f"Repository: models are Model or Generator, got {model!r}")
        with self._lock:
            versions = {**self._models.get(model.name, {}), model.version: model}
            ordered = sorted(versions.items(), key=lambda v: (len(v[0]), v[0]))
            self._models = {**self._models, model.name: dict(ordered)}

    def load(self, path: str | Path) -> None:
        """Serve a file, or all in a folder: `folder/name.onnx`, or `folder/name/version/*.onnx`,
        and `.fg` likewise; or folders that `save_generator` wrote,
        `folder/name` or `folder/name/version`.

        All are read, and warmed up, before the first is served: what fails leaves the others.
        """
        path = Path(path)
        found: list[tuple[Path, str, str]] = []
        if path.is_file() or (path / MANIFEST).is_file():
            found.append((path, path.stem if path.is_file() else path.name, "1"))
        else:
            for suffix in SUFFIXES:
                found += [(p, p.stem, "1") for p in sorted(path.glob(f"*{suffix}"))]
                versions = sorted(path.glob(f"*/*/*{suffix}"))
                found += [(p, p.parts[-3], p.parts[-2]) for p in versions]
            generators = [p.parent for p in sorted(path.glob(f"*/{MANIFEST}"))]
            found += [(p, p.name, "1") for p in generators]
            generators = [p.parent for p in sorted(path.glob(f"*/*/{MANIFEST}"))]
            found += [(p, p.parts[-2], p.parts[-1]) for p in generators]
        if not found:
            raise FormatError(f"there are no models in {path}")
        made = [load_model(p, name, version) for p, name, version in found]
        self._warm_up(made)
        for model, (file, name, _) in zip(made, found, strict=True):
            self.put(model)
            self.paths[name] = file

    def path_of(self, name: str) -> Path:
        """Where a model was read."""
        if name not in self.paths:
            raise RequestError(f"there is no file of a model {name!r}", 404, "not_found")
        return self.paths[name]

    def read_again(self, name: str) -> Served:
        """A model as its file is now, compiled, and not yet served."""
        model = load_model(self.path_of(name), name, self.versions(name)[-1])
        self._warm_up([model])
        return model

    def reload(self, name: str) -> None:
        """Read a model's file again, and serve what it has now."""
        self.put(self.read_again(name))

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Compile all for batches of these sizes, and what is read later, too."""
        self.sizes = sizes
        self._warm_up([m for versions in self._models.values() for m in versions.values()])

    def _warm_up(self, models: Sequence[Served]) -> None:
        for model in models if self.sizes else ():
            model.warm_up(self.sizes)

    def names(self) -> list[str]:
        """The models' names."""
        return sorted(self._models)

    def versions(self, name: str) -> list[str]:
        """A model's versions, the latest one last."""
        return list(self._models.get(name, ()))

    def get(self, name: str, version: str | None = None) -> Served:
        """A model, of a version or of the latest."""
        versions = self._models.get(name, {})
        if not versions or version not in (None, *versions):
            what = f"version {version} of the model {name!r}" if versions else f"model {name!r}"
            raise RequestError(f"there is no {what}; there are {self.names()}", 404, "not_found")
        return versions[next(reversed(versions)) if version is None else version]
