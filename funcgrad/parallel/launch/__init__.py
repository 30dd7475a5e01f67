"""How a job ends: an exception on one rank ends all, and what is left behind is swept.

- `hooks`: an exception on one rank ends all ranks: else the others would wait for it without end
- `leftovers`: what an MPI library leaves in /dev/shm when a rank is killed while it starts
"""
