"""Low-rank adapters: a function's weights stay as they are, and small factors beside them learn.

- `adapter`: an adapter of one weight, and the weight that it and its base make
- `files`: adapters in the files of Hugging Face's PEFT
- `transform`: adapters for a function's parameters, and parameters that have taken them in
"""

from funcgrad.adapters.adapter import Adapted, Adapter
from funcgrad.adapters.files import load_adapters, save_adapters
from funcgrad.adapters.transform import lora, lora_merge

__all__ = ["Adapted", "Adapter", "load_adapters", "lora", "lora_merge", "save_adapters"]
