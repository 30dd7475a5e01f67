"""GPUs, their memory, and arrays in it.

- `device`: the driver's library by ctypes
- `pool`: a device's memory
- `gpu`: devices as programs use them
- `memory`: arrays on a GPU
- `interchange`: their memory for other libraries
"""
