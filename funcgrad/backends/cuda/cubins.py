"""Kernels as cubins: assembled by the driver, many at the same time, and kept on disk.

LLVM writes a kernel's PTX in some 15 ms, the driver assembles it in 26, and loads what is on disk
in 0.03. A file is known by the kernel's text, the architecture, LLVM and the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from weakref import finalize

from funcgrad.backends.cuda.devices.device import Driver
from funcgrad.backends.cuda.modules import Launch
from funcgrad.backends.cuda.nvptx import ptx
from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.target import llvm_version

_THREADS = 8


class Functions:
    """Kernels on a device: functions of loaded modules, which stay as long as this does."""

    def __init__(self, launches: Sequence[Launch], driver: Driver):
        self.driver = driver
        self.handles: dict[str, int] = {}
        modules: list[int] = []
        finalize(self, _unload, driver, modules).atexit = False
        for name, image in _images(launches, driver):
            modules.append(driver.load(image))
            self.handles[name] = driver.function(modules[-1], name)


def _images(launches: Sequence[Launch], driver: Driver) -> Iterable[tuple[str, bytes]]:
    """The cubin of each name."""
    texts = {launch.name: launch.device_text for launch in launches}

    def made(text: str) -> bytes:
        key = objects.digest("cubin", driver.arch, str(driver.version), llvm_version(), text)
        if (kept := objects.load(key)) is not None:
            return kept[1]
        written = ptx(text, driver.arch)
        driver.enter()
        image = driver.link(written)
        objects.save(key, {}, image)
        return image

    if len(texts) < 2:
        return [(name, made(text)) for name, text in texts.items()]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        return list(zip(texts, threads.map(made, texts.values()), strict=True))


def _unload(driver: Driver, modules: Sequence[int]) -> None:
    with driver.inside():
        for module in modules:
            driver.unload(module)
