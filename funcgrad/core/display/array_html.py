"""Arrays as HTML: type and range, then a picture: a curve, a tinted table, a heat map, an image.

Colours carry an alpha channel, so that pictures stand on light and dark pages alike. Nothing is
drawn by a library: curves are SVG, pixels a PNG written here.
"""

from __future__ import annotations

import struct
import zlib
from binascii import b2a_base64

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.display.jaxpr_html import escape, page

# Larger arrays are sampled to as many points and pixels.
CURVE, PIXELS, TABLE, SLICES = 240, 200, 12, 8
_NEGATIVE, _POSITIVE, _STRANGE = (59, 130, 246), (234, 110, 10), (220, 38, 38)


def array_html(value: np.ndarray, aval: ShapedArray) -> str:
    """An array's type, size and range, a picture of it, and its (abridged) elements."""
    head = [f"<b>{escape(str(aval))}</b>", *_facts(value)]
    if aval.weak_type:
        head.insert(1, "weak")
    line = f"<div>{head[0]} <span class=q>{' · '.join(head[1:])}</span></div>"
    return page(line + _body(value))


def bits_html(title: str, words: np.ndarray) -> str:
    """A few words under a title, and their bits as a picture: equal keys look equal."""
    bits = np.unpackbits(words.astype(">u4").view(np.uint8)).reshape(-1, 16)
    return page(f"<div><b>{escape(title)}</b></div>{heat_map(bits[:128].astype(np.float32))}")


# ---- facts


def size_text(nbytes: int) -> str:
    """A number of bytes for people.

    >>> size_text(4096)
    '4.1 kB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes} B"
        nbytes /= 1000  # type: ignore[assignment]
    return f"{nbytes:.3g} TB"


def _facts(value: np.ndarray) -> list[str]:
    facts = [size_text(value.nbytes)]
    numbers = _numbers(value)
    if numbers is None or value.size < 2:
        return facts
    finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    if finite.size:
        low, high = finite.min(), finite.max()
        mean = finite.mean(dtype=np.float64)
        name = "|x|: " if value.dtype.kind == "c" else ""
        facts.append(f"{name}min {low:.4g} · max {high:.4g} · mean {mean:.4g}")
    if numbers.dtype.kind == "f" and finite.size < numbers.size:
        nans = int(np.isnan(numbers).sum())
        infs = numbers.size - finite.size - nans
        facts += [f"<b class=w>{n} {what}</b>" for n, what in ((nans, "NaN"), (infs, "inf")) if n]
    return facts


def _numbers(value: np.ndarray) -> np.ndarray | None:
    """The elements as numbers that NumPy orders and averages, None where there is no such thing."""
    if value.dtype.names is not None or not value.size:
        return None
    if value.dtype.kind == "c":
        return np.abs(value)
    if value.dtype.kind == "b":
        return value.view(np.uint8)
    if value.dtype.kind in "iuf" and value.dtype.itemsize * 8 > 16:
        return value
    return value.astype(np.float32)


# ---- bodies


def _body(value: np.ndarray) -> str:
    if value.ndim == 0:
        return f"<pre>{escape(str(value[()]))}</pre>"
    text = np.array2string(value, separator=", ", threshold=60, edgeitems=3)
    plain = f"<pre>{escape(text)}</pre>"
    if value.ndim == 2 and value.size > 1 and max(value.shape) <= TABLE and _is_plain(value):
        return _tinted(value)
    picture = _picture(value)
    if picture is None:
        return plain
    return f"{picture}<details><summary class=q>values</summary>{plain}</details>"


def _picture(value: np.ndarray) -> str | None:
    if value.size <= TABLE or not _is_plain(value):
        return None
    if value.ndim == 1:
        return curve(_drawn(value))
    if value.ndim == 2:
        return heat_map(_drawn(_sampled(value)))
    if value.shape[-1] in (3, 4) and min(value.shape[-3:-1]) >= 8 and _is_colour(value):
        images = value.reshape(-1, *value.shape[-3:])
        return _row([_image(_rgba(_sampled(i))) for i in images[:SLICES]], len(images))
    if min(value.shape[-2:]) >= 2:
        slices = value.reshape(-1, *value.shape[-2:])
        top = float(np.max(np.abs(_drawn(slices[:SLICES])), initial=0.0)) or 1.0
        drawn = [_drawn(_sampled(s)) for s in slices[:SLICES]]
        return _row([heat_map(d, top, PIXELS // 2) for d in drawn], len(slices))
    return None


def _is_plain(value: np.ndarray) -> bool:
    """Whether the elements are numbers (those of float0 are nothing)."""
    return value.dtype.names is None


def _drawn(value: np.ndarray) -> np.ndarray:
    """Elements as float32: what is drawn."""
    with np.errstate(all="ignore"):
        return (np.abs(value) if value.dtype.kind == "c" else value).astype(np.float32)


def _sampled(matrix: np.ndarray) -> np.ndarray:
    """Every n-th row and column, as many as are drawn."""
    down, right = (max(1, -(-n // PIXELS)) for n in matrix.shape[:2])
    return matrix[::down, ::right]


def _row(pictures: list[str], total: int) -> str:
    shown = "".join(f"<span class=p>{p}</span>" for p in pictures)
    rest = f" <span class=q>{len(pictures)} of {total}</span>" if total > len(pictures) else ""
    return f"<div>{shown}{rest}</div>"


def curve(values: np.ndarray) -> str:
    """Numbers in a row as a curve; many of them as the band between their extremes."""
    width, height = CURVE, 44
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ""
    low, high = float(finite.min()), float(finite.max())
    span = (high - low) or 1.0
    if values.size <= CURVE:
        rows = [values, values]
        at = np.linspace(0, width, values.size)
    else:
        edges = np.linspace(0, values.size, CURVE, endpoint=False).astype(int)
        rows = [np.fmin.reduceat(values, edges), np.fmax.reduceat(values, edges)]
        at = np.linspace(0, width, CURVE)
    lower, upper = (
        [f"{x:.1f},{2 + (high - y) / span * (height - 4):.1f}"
         for x, y in zip(at, row, strict=True) if np.isfinite(y)]
        for row in rows
    )  # fmt: skip
    points = " ".join(upper if values.size <= CURVE else [*upper, *lower[::-1]])
    shape = "polyline" if values.size <= CURVE else "polygon"
    fill = "none" if values.size <= CURVE else "currentColor"
    zero = ""
    if low < 0 < high:
        y = 2 + high / span * (height - 4)
        zero = f'<line x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" class=z />'
    return (
        f'<svg class=c width="{width}" height="{height}" viewBox="0 0 {width} {height}">{zero}'
        f'<{shape} points="{points}" fill="{fill}" stroke="currentColor" stroke-width="1.2"/></svg>'
    )


def _tinted(value: np.ndarray) -> str:
    """A small matrix as a table whose cells are tinted by sign and magnitude."""
    drawn = _drawn(value)
    finite = np.where(np.isfinite(drawn), drawn, 0)
    top = float(np.abs(finite).max()) or 1.0
    rows = []
    for shown, tints in zip(value, finite, strict=True):
        cells = "".join(
            f'<td style="background:rgba{(*(_NEGATIVE if t < 0 else _POSITIVE), _alpha(t, top))}">'
            f"{escape(_cell_text(v))}</td>"
            for v, t in zip(shown, tints, strict=True)
        )
        rows.append(f"<tr>{cells}</tr>")
    return f"<table class=m>{''.join(rows)}</table>"


def _alpha(value: float, top: float) -> float:
    return round(0.7 * abs(float(value)) / top, 2)


def _cell_text(value: np.generic) -> str:
    if value.dtype.kind in "biu":
        return str(value)
    return f"{value.item():.4g}" if isinstance(value.item(), float | complex) else str(value)


# ---- pixels


def heat_map(matrix: np.ndarray, top: float | None = None, width: int = CURVE) -> str:
    """A matrix as pixels: orange above zero, blue below, red where it is not finite. `top` is the
    magnitude of full colour, `width` that to which few pixels are enlarged."""
    known = np.isfinite(matrix)
    finite = np.where(known, matrix, 0)
    top = top or float(np.abs(finite).max(initial=0.0)) or 1.0
    rgba = np.empty((*matrix.shape, 4), np.uint8)
    rgba[..., :3] = np.where(finite[..., None] < 0, _NEGATIVE, _POSITIVE)
    rgba[..., 3] = 8 + 247 * np.clip(np.abs(finite) / top, 0, 1)
    rgba[~known] = (*_STRANGE, 255)
    return _image(rgba, width)


def _is_colour(value: np.ndarray) -> bool:
    if value.dtype == np.uint8:
        return True
    if value.dtype.kind != "f":
        return False
    return bool(np.all((value >= 0) & (value <= 1)))


def _rgba(image: np.ndarray) -> np.ndarray:
    pixels = image if image.dtype == np.uint8 else (image * 255 + 0.5).astype(np.uint8)
    if pixels.shape[-1] == 4:
        return pixels
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=-1)


def _image(rgba: np.ndarray, wanted: int = CURVE) -> str:
    height, width = rgba.shape[:2]
    zoom = max(1, min(14, wanted // max(height, width)))
    data = b2a_base64(png(rgba), newline=False).decode()
    return (
        f'<img class=i width="{width * zoom}" height="{height * zoom}" '
        f'src="data:image/png;base64,{data}">'
    )


def png(rgba: np.ndarray) -> bytes:
    """A PNG file of pixels, uint8[height, width, 4].

    >>> png(np.zeros((2, 2, 4), np.uint8))[1:4]
    b'PNG'
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width = rgba.shape[:2]
    rows = np.zeros((height, 1 + 4 * width), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = rgba.reshape(height, 4 * width)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")
