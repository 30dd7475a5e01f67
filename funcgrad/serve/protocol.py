"""Tensors of the Open Inference Protocol: as JSON, or as bytes behind the JSON.

A request's body is JSON, or JSON of the length that `Inference-Header-Content-Length` says and then
the bytes of its tensors, little end first, in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

DATATYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool), "UINT8": np.dtype("u1"), "UINT16": np.dtype("u2"),
    "UINT32": np.dtype("u4"), "UINT64": np.dtype("u8"), "INT8": np.dtype("i1"),
    "INT16": np.dtype("i2"), "INT32": np.dtype("i4"), "INT64": np.dtype("i8"),
    "FP16": np.dtype("f2"), "FP32": np.dtype("f4"), "FP64": np.dtype("f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
MAX_ID = 200
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_NARROW = {DATATYPES["FP16"], DATATYPES["BF16"]}


class RequestError(Exception):
    """What is wrong with a request, and the status that says so."""

    def __init__(self, what: str, status: int = 400, reason: str = "bad_request"):
        super().__init__(what)
        self.status, self.reason = status, reason


class Request:
    """A request for inference: tensors by name, and what is wanted of the answer."""

    def __init__(self, body: bytes, header_length: int | None):
        length = len(body) if header_length is None else header_length
        if not 0 <= length <= len(body):
            raise RequestError(f"a header of {length} bytes, in a body of {len(body)}")
        try:
            told = json.loads(body[:length])
        except (ValueError, RecursionError) as e:
            raise RequestError(f"the request is no JSON: {e}") from None
        if not isinstance(told, dict) or not isinstance(told.get("inputs"), list):
            raise RequestError("the request needs a list of inputs")
        self.id = id_in(told)
        self.parameters = _dictionary(told.get("parameters"), "parameters")
        self.inputs: dict[str, np.ndarray] = {}
        rest = memoryview(body)[length:]
        for item in told["inputs"]:
            name, value, rest = _tensor(item, rest)
            if name in self.inputs:
                raise RequestError(f"the input {name!r} is given twice")
            self.inputs[name] = value
        if len(rest):
            raise RequestError(f"{len(rest)} bytes are behind the last tensor")
        wanted = told.get("outputs") or []
        if not isinstance(wanted, list) or not all(isinstance(o, dict) for o in wanted):
            raise RequestError("outputs must be a list of dictionaries")
        self.outputs = {o.get("name"): _dictionary(o.get("parameters"), "parameters")
                        for o in wanted}  # fmt: skip


def id_in(told: Mapping[str, Any]) -> str:
    """A request's own id, empty where it has none."""
    found = told.get("id", "")
    if not isinstance(found, str) or len(found) > MAX_ID:
        raise RequestError(f"an id is a string of {MAX_ID} characters at most")
    return found


def priority_in(parameters: Mapping[str, Any]) -> int:
    """A request's priority; lower ones go first."""
    priority = parameters.get("priority", 0)
    if type(priority) is not int:
        raise RequestError(f"a priority is an integer, got {priority!r}")
    return priority


def _dictionary(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a dictionary")
    return value


def _tensor(item: Any, rest: memoryview) -> tuple[str, np.ndarray, memoryview]:
    item = _dictionary(item, "an input")
    name, kind, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str) or not isinstance(kind, str) or kind not in DATATYPES:
        raise RequestError(f"the input {name!r} has datatype {kind!r}; {', '.join(DATATYPES)} are")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise RequestError(f"the input {name!r} has shape {shape!r}")
    dtype, count = DATATYPES[kind], 1
    for n in shape:
        count *= n
    size = _dictionary(item.get("parameters"), "parameters").get("binary_data_size")
    if size is not None:
        if size != count * dtype.itemsize or size > len(rest):
            raise RequestError(
                f"the input {name!r} of shape {shape} has {size} bytes; {len(rest)} are there"
            )
        value = np.frombuffer(rest[:size], np.uint8).view(dtype)
        return name, value.reshape(shape), rest[size:]
    try:
        flat = np.asarray(item.get("data"), object if kind in ("INT64", "UINT64") else None)
        value = flat.astype(dtype).reshape(-1)
    except (ValueError, TypeError, OverflowError) as e:
        raise RequestError(f"the data of input {name!r} are no {kind}: {e}") from None
    if value.size != count or value.size > max(count, 1):
        raise RequestError(f"the input {name!r} of shape {shape} has {value.size} elements")
    return name, value.reshape(shape), rest


def response(
    model: str, version: str, request: Request, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if bytes follow."""
    chosen = list(request.outputs) or list(outputs)
    told: list[dict[str, Any]] = []
    parts: list[bytes] = []
    everything = bool(request.parameters.get("binary_data_output"))
    for name in chosen:
        if name not in outputs:
            raise RequestError(f"there is no output {name!r}; the outputs are {list(outputs)}")
        value = np.asarray(outputs[name])
        item: dict[str, Any] = {
            "name": name, "datatype": NAMES[value.dtype], "shape": list(value.shape),
        }  # fmt: skip
        if request.outputs.get(name, {}).get("binary_data", everything):
            parts.append(np.ascontiguousarray(value).tobytes())
            item["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            item["data"] = _listed(value)
        told.append(item)
    head: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": told}
    if request.id:
        head["id"] = request.id
    text = json.dumps(head).encode()
    return (text + b"".join(parts), len(text)) if parts else (text, None)


def _listed(value: np.ndarray) -> Sequence[Any]:
    return (value.astype(np.float32) if value.dtype in _NARROW else value).reshape(-1).tolist()
