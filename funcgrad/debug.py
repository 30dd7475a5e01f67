"""Looking into running programs: `debug.print` and `debug.callback` work under every transform."""

from funcgrad.transforms.callbacks import debug_callback as callback
from funcgrad.transforms.callbacks import debug_print as print

__all__ = ["callback", "print"]
