"""The package's logger; `logging` itself, which takes long to import, is loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

DEBUG, WARNING = 10, 30  # logging's levels


def logger() -> Logger:
    """The logger `funcgrad`.

    >>> logger().name
    'funcgrad'
    """
    import logging

    return logging.getLogger("funcgrad")
