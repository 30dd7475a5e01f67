"""The CUDA backend: the planner's kernels as LLVM text, for NVIDIA's GPUs and for their simulator.

No kernel of it has run on a GPU yet: they are assembled, and simulated on the CPU. docs/cuda.md
says what hardware said, and what it has still to say.

What programs are planned for, and how kernels run:

- `machine`: a GPU as a `Target`
- `schedule`: which threads take which points, and how many there are

Writing kernels:

- `words`: the hardware's words, twice: a GPU's, and the simulator's
- `writer`: statements of a thread
- `remainders`: `fmod` in exact steps
- `points`: a thread a point, or a column
- `rows`: a warp or a block a point
- `modules`: kernels as one module, and their launches
- `kernels`: those of single ops

What NVIDIA's libraries compute:

- `libraries`: products, and what has no kernel

Running them:

- `nvptx`: to PTX, and what ptxas says of it
- `simulate`: on the CPU
- `executable`: whole programs, simulated
- `devices`: the driver, its memory, arrays in it
- `cubins`: kernels assembled, kept on disk, loaded
- `host`: a program's native function
- `loaded`: that function with what it calls
- `streams`: what runs beside kernels
- `graphs`: programs captured and replayed
- `times`: how long steps took, for profiles
- `device_program`: whole programs on a GPU
- `eager`: operations one by one
"""
