"""Which devices there are."""

import pytest

import funcgrad as fg
from funcgrad.core.sharding import Device
from funcgrad.errors import ShardingError
from funcgrad.parallel import (
    make_mesh,
    meshes,
    process_count,
    process_index,
    virtual_devices,
)


def test_a_plain_process_has_as_many_virtual_devices_as_are_asked_for():
    assert fg.devices() == (Device(0),)
    assert make_mesh((2, 3), ("a", "b")).devices[1, 2] == Device(5)
    assert make_mesh((-1, 2), ("a", "b"), devices=virtual_devices(8)).shape == {"a": 4, "b": 2}
    assert (process_index(), process_count()) == (0, 1)


def test_under_a_launcher_devices_are_ranks(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert (process_index(), process_count()) == (1, 4)
    assert fg.devices()[3] == Device(3, 3, "rank")
    mesh = make_mesh((2, -1), ("a", "b"))
    assert mesh.shape == {"a": 2, "b": 2}
    assert mesh.devices[1, 0] == Device(2, 2, "rank")
    with pytest.raises(ShardingError, match=r"needs 2 devices, there are 4"):
        make_mesh(2, "a")
    assert make_mesh(2, "a", devices=virtual_devices(2)).devices[1].kind == "virtual"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"PMIX_RANK": "0", "PMIX_SIZE": "2"}, (0, 2)),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, (1, 4)),
        # Slurm without MPI; a job's script, which it doesn't start as one of several.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "PMIX_RANK": "0"}, None),
        # Alone, half told, and told what is no number.
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_SIZE": "3"}, None),
        ({"PMI_RANK": "", "PMI_SIZE": ""}, None),
        ({"PMI_RANK": "x", "PMI_SIZE": "3"}, None),
    ],
    ids=str,
)
def test_how_launchers_say_which_rank_this_is(monkeypatch, variables, place):
    for names in meshes._LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert meshes.launched() == place
    assert (process_index(), process_count()) == (place or (0, 1))


@pytest.mark.parametrize(
    ("shape", "devices", "words"),
    [
        ((3,), 2, "needs 3 devices, there are 2"),
        ((-1, -1), 4, "one may be -1"),
        ((0,), 4, "at least 1"),
        ((-1, 3), 4, "not a multiple of 3"),
    ],
)
def test_meshes_that_cannot_be(shape, devices, words):
    names = ("a", "b")[: len(shape)]
    with pytest.raises(ShardingError, match=words):
        make_mesh(shape, names, devices=virtual_devices(devices))


def test_environment(capsys):
    text = fg.print_environment_info(return_string=True)
    assert [line.partition(":")[0] for line in text.splitlines()[:4]] == [
        "funcgrad", "numpy", "llvmlite", "python",
    ]  # fmt: skip
    assert fg.print_environment_info() is None
    assert capsys.readouterr().out == text + "\n"


def test_no_devices():
    with pytest.raises(ValueError, match="at least 1"):
        virtual_devices(0)


def test_what_a_report_of_a_problem_needs(capsys):
    text = fg.print_environment_info(return_string=True)
    assert fg.print_environment_info() is None
    assert capsys.readouterr().out == f"{text}\n"
    assert all(f"\n{what}: " in f"\n{text}" for what in ("funcgrad", "numpy", "python", "platform"))
