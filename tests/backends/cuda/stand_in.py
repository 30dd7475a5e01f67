"""Programs on the stand-in of the driver, whose launches the simulator runs."""

import ctypes
import threading

from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.backends.cuda.simulate import Simulator
from tests.backends.cuda.simulated import program_of

START = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)
)


_ONE = threading.Lock()  # a simulator is one thread's at a time, also where ranks are threads


def launches_of(fake, program):
    """Let the simulator run what a program launches."""
    simulator = Simulator(program.kernels)
    known = {launch.name: launch for launch in program.kernels.launches}

    @START
    def start(name, grid, block, params):
        launch = known[name.decode()]
        assert (grid, block) == (launch.plan.grid, launch.plan.block)
        slots = [ctypes.c_void_p.from_address(params[i]).value for i in range(launch.args)]
        with _ONE:
            simulator.launch(launch, slots)
        return 0

    fake.fake_start(start)
    return start  # which is to live as long


def on_fake(f, fake, gpu, *args, donated=None):
    """A function's program on the stand-in."""
    program = DeviceProgram(program_of(f, *args, donated=donated), gpu)
    program.start = launches_of(fake, program)
    return program
