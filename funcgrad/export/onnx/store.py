"""Model files: the message and its weights, in one file or, beyond 2 GB, beside it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from funcgrad.export.onnx.kernels import ONNX_NAMES

LIMIT = 2_000_000_000  # a message can't have 2 GiB
PAGE = 4096  # where weights beside the model begin, so that they can be mapped
SMALL = 1024  # bytes of constants that stay in the model


def stored(onnx: Any, made: tuple[Any, dict[str, np.ndarray]], path: Path) -> None:
    """Write a model; the file is there whole or not at all."""
    model, arrays = made
    beside = sum(a.nbytes for a in arrays.values()) > LIMIT
    data = path.with_name(path.name + ".data")
    path.parent.mkdir(parents=True, exist_ok=True)
    if beside:
        with _written_aside(data) as file:
            for name, array in arrays.items():
                model.graph.initializer.append(_outside(onnx, name, array, file, data.name))
    else:
        for name, array in arrays.items():
            model.graph.initializer.append(tensor(onnx, name, array))
    with _written_aside(path) as file:
        file.write(model.SerializeToString())


def tensor(onnx: Any, name: str, array: np.ndarray) -> Any:
    """An array as a message."""
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _outside(onnx: Any, name: str, array: np.ndarray, file: BinaryIO, location: str) -> Any:
    if array.nbytes < SMALL or array.dtype.name in ("int4", "uint4"):
        return tensor(onnx, name, array)
    file.write(b"\0" * (-file.tell() % PAGE))
    found = onnx.TensorProto()
    found.name = name
    found.dims.extend(array.shape)
    found.data_type = getattr(onnx.TensorProto, ONNX_NAMES[array.dtype])
    found.data_location = onnx.TensorProto.EXTERNAL
    told = {"location": location, "offset": file.tell(), "length": array.nbytes}
    for key, value in told.items():
        entry = found.external_data.add()
        entry.key, entry.value = key, str(value)
    file.write(np.ascontiguousarray(array).view(np.uint8).data if array.ndim else array.tobytes())
    return found


class _written_aside:
    """A file that takes its name when all of it is written."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> BinaryIO:
        handle, self.aside = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        self.file = os.fdopen(handle, "wb")
        return self.file

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.file.close()
        if kind is not None:
            os.unlink(self.aside)
            return
        os.chmod(self.aside, 0o644)
        os.replace(self.aside, self.path)
