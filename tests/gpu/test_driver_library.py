"""The fake driver library, and what only a whole process can show: old bindings, damage, descriptors."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from tests.gpu.fakes import FakeDriver, Fixture, Reader, board, busy, node

OLDEST = "12.560.30"
"""Of the range in pyproject.toml; the newest is what is installed."""


def test_structs_are_laid_out_as_the_binding_expects(library: Path) -> None:
    fake = ctypes.CDLL(str(library))
    fake.fake_nvml_size_of.argtypes = [ctypes.c_char_p]
    names = [
        "nvmlPciInfo_t",
        "c_nvmlMemory_t",
        "c_nvmlMemory_v2_t",
        "c_nvmlUtilization_t",
        "c_nvmlTemperature_v1_t",
        "c_nvmlProcessInfo_t",
        "c_nvmlDeviceAttributes",
        "c_nvmlGpmMetric_t",
        "c_nvmlGpmSupport_t",
        "c_nvmlEventData_t",
    ]
    told = {name: fake.fake_nvml_size_of(name.encode()) for name in names if hasattr(pynvml, name)}
    assert len(told) >= 9
    assert told == {name: ctypes.sizeof(getattr(pynvml, name)) for name in told}


def test_no_agent_would_find_the_fake_by_itself(library: Path) -> None:
    assert not any(str(library.parent) in path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    assert "FAKE_NVML_FIXTURE" not in os.environ


@pytest.fixture(scope="session")
def oldest_binding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oldest")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps"),
            *("--target", str(folder), f"nvidia-ml-py=={OLDEST}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or importlib.util.find_spec("pynvml") is None:
        pytest.skip(f"nvidia-ml-py {OLDEST} cannot be had: {done.stderr.strip()[-200:]}")
    return folder


def test_the_oldest_binding_of_our_range_reads_the_same(
    oldest_binding: Path, driver: Callable[[Fixture], FakeDriver]
) -> None:
    gpu = board("h100") | busy(board("h100"), 80, 40) | {"process": {0: {"pid": 4, "mib": 100}}}
    fixture = node(gpu, board("a100", 1, mig=("1g.10gb",)), board("rtx4090", 2, lost=1))
    told = []
    for path in ("", str(oldest_binding)):
        reader = Reader(driver(fixture), python_path=path)
        devices = reader.ask("devices")
        reader.ask("samples")
        samples = reader.ask("processes")
        reader.driver.xid(0, 79)
        faults = reader.ask("faults")
        reader.close()
        for sample in samples:
            del sample["read_at"], sample["energy_j"]  # they move
        told.append((devices, samples, faults))
    assert told[0] == told[1]
    assert told[0][2], "the Xid was heard"


def test_ten_thousand_damaged_fixtures_crash_nothing(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.nvml"
    path.write_text("count = 0\n")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_FIXTURE": str(path)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.fuzz", str(path.with_name(f"{seed}.nvml")), "5000", str(seed)],
            env={**environment, "FAKE_NVML_FIXTURE": str(path.with_name(f"{seed}.nvml"))},
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 7)
    ]
    for run in runs:
        _, told = run.communicate(timeout=300)
        assert run.returncode == 0, told[-3000:]


def test_eight_gpus_cost_less_than_a_hundredth_of_a_core(reader: Reader) -> None:
    processes = {"process": {i: {"pid": 100 + i, "mib": 10} for i in range(4)}}
    reader.look(node(*(board("h100", i) | busy(board("h100"), 90, 40) | processes for i in range(8))))
    per_second = min(reader.ask("cost") for _ in range(3))
    assert per_second < 0.01, f"{per_second:.4f} s of CPU for each second"


def test_ten_thousand_polls_open_no_descriptors(reader: Reader) -> None:
    reader.look(node(*(board("h100", i) for i in range(2))))
    reader.ask("samples")
    before = reader.ask("descriptors")
    reader.ask("polls")
    assert reader.ask("descriptors") == before
