"""Layers over devices: a pipeline of stages through which microbatches flow.

- `run`: `pipeline`, a function of all stages
- `train`: `pipeline_value_and_grad`, a loss and its gradient by a schedule's table
- `schedules`: who does what when, as data: GPipe, 1F1B, interleaved, ZB-H1, ZB-V, and a user's own
- `simulate`: a schedule on paper: faults, length, idle time, activations kept
- `picture`: a schedule as text and as an SVG
- `stages`: the programs of stages that are alike, or a function each
- `packing`: weights and messages of unlike stages in arrays of one type: `pack_stages`
- `ticks`: a schedule as tables of integers, by which all ranks run one program
- `messages`: what goes from rank to rank, and the slots in which it waits
- `layout`: which of the stages are whose, and which rows of a batch make a microbatch
- `moves`: rows of arrays from rank to rank
- `derivatives`: a stage's forward pass, and the halves of its backward pass, as programs
- `residuals`: what a stage's forward pass leaves to its backward pass, as little as can be
"""

from funcgrad.parallel.pipelines.schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    make_schedule,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from funcgrad.parallel.pipelines.simulate import Costs, Timeline, simulate

__all__ = [
    "Action", "Costs", "Schedule", "Timeline", "gpipe", "interleaved", "make_schedule",
    "one_f_one_b", "simulate", "zb_h1", "zb_v",
]  # fmt: skip
