"""Trees of arrays in folders, whole ones or shards, which any mesh loads again.

- `checkpoint`: checkpoints of sharded arrays: each process writes its own shards, any mesh loads
  them
- `files`: files of shards: safetensors, with a checksum of each block of their bytes
- `folders`: folders of checkpoints: written aside, announced by one rename, never half there
- `loading`: each device's part of each array, from the pieces that overlap it
- `manifest`: the manifest of a checkpoint: which leaves it holds, and in which pieces of which
  files
- `saving`: what each process takes hold of and writes, and how all agree that it is done
"""

from funcgrad.io.checkpoints.checkpoint import (
    Checkpointer,
    Contents,
    Processes,
    Saving,
    contents,
    load,
    save,
)

__all__ = ["Checkpointer", "Contents", "Processes", "Saving", "contents", "load", "save"]
