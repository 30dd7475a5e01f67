"""NumPy's functions on arrays that differentiate, batch and compile: `funcgrad.numpy as fnp`."""
