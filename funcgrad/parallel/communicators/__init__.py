"""What joins devices: exchanges over memory and MPI, their native code, and who watches them.

- `communicator`: communicators: what joins devices
- `flight_recorder`: the flight recorder
- `fold`: native sums, maxima and minima of several arrays, element by element
- `mail`: messages between two ranks, for which nobody else waits
- `mpi`: communicators over MPI: shared memory inside a node, MPI between nodes
- `mpi_native`: native exchanges through MPI, whose functions are called by address
- `native`: what native communicators have in common
- `nccl`: communicators over NVIDIA's NCCL: a rank a GPU
- `nccl_native`: native exchanges through NCCL
- `shared`: communicators of one node: ranks that share memory
- `shared_native`: native exchanges through memory that the ranks of a node share
- `watchdog`: A thread that ends a job in which ranks wait for each other without end
"""
