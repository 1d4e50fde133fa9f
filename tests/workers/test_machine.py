"""What a node says of its machine: CPU, GPUs, renderers, processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from farm.model.ids import AttemptId
from farm.model.machines import DeviceKind
from farm.settings import Settings
from workers import capabilities, cpu_benchmark, processes
from workers.gauges import Gauges
from workers.gpu import Gpus

# --- CPU -------------------------------------------------------------------------------------------------


def test_the_cpu_is_measured_once_and_then_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    first = cpu_benchmark.measured(tmp_path, 2)
    assert time.monotonic() - started < 6, "it takes less than 2 s on a quiet machine"
    assert 0.001 < first.fp32_tflops < 1000
    assert 0.1 < first.memory_bandwidth_gbps < 10_000
    monkeypatch.setattr(cpu_benchmark, "measure", lambda cpus: pytest.fail("measured again"))
    assert cpu_benchmark.measured(tmp_path, 2) == first
    with pytest.raises(pytest.fail.Exception):
        cpu_benchmark.measured(tmp_path, 3)


def test_a_damaged_cache_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = cpu_benchmark.CpuFigures(fp32_tflops=1.0, memory_bandwidth_gbps=2.0)
    monkeypatch.setattr(cpu_benchmark, "measure", lambda cpus: figures)
    for damage in ("", "[]", '{"key": 1}', "\x00"):
        (tmp_path / "cpu.json").write_text(damage)
        assert cpu_benchmark.measured(tmp_path, 2) == figures


def test_a_node_offers_its_cpu_with_a_slot_for_every_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = cpu_benchmark.CpuFigures(fp32_tflops=1.0, memory_bandwidth_gbps=2.0)
    monkeypatch.setattr(cpu_benchmark, "measure", lambda cpus: figures)
    settings = Settings(state_dir=tmp_path, attributes={"attr.site": ("berlin",)})
    offered = capabilities.capabilities(settings, Gpus(lambda: None), {"blender": "4.2"})
    (cpu,) = offered.devices
    assert cpu.kind is DeviceKind.CPU
    assert cpu.slots == capabilities.default_slots(offered.cpus)
    assert (cpu.fp32_tflops, cpu.memory_bandwidth_gbps) == (1.0, 2.0)
    assert offered.memory_mib > 100
    assert offered.os_family in ("linux", "macos", "windows")
    assert offered.cpu_arch in ("x86_64", "arm64")
    assert offered.attributes == {"attr.site": ("berlin",)}
    assert [capabilities.default_slots(cpus) for cpus in (1, 2, 3, 8)] == [1, 1, 1, 4]
    assert capabilities.capabilities(Settings(state_dir=tmp_path, slots=7), Gpus(lambda: None), {}).slots == 7


# --- GPUs ------------------------------------------------------------------------------------------------


class FakeNvmlError(Exception):
    pass


class FakeNvml:
    """A driver with three GPUs: a data-centre board, a consumer board that knows little, a MIG board."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlMemory_v2 = 2  # noqa: N815 - the driver's name

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 3:
            raise FakeNvmlError("GPU is lost")
        return f"gpu{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str | bytes:
        return {"gpu0": "GPU-0", "gpu1": b"GPU-1", "gpu2": "GPU-2", "mig1": "MIG-1"}[handle]

    def nvmlDeviceGetName(self, handle: str) -> str:
        if handle == "gpu1":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "garbage")
        return "NVIDIA L40S"

    def nvmlDeviceGetBrand(self, handle: str) -> int:
        return 5 if handle == "gpu1" else 14

    def nvmlDeviceGetNumGpuCores(self, handle: str) -> int:
        if handle == "gpu2":
            raise FakeNvmlError("Not Supported")
        return 10_000

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return {1: 2000, 2: 9001}[kind]

    def nvmlDeviceGetMemoryBusWidth(self, handle: str) -> int:
        if handle == "gpu1":
            raise FakeNvmlError("Not Supported")
        return 384

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        gib = 6 if handle == "mig1" else 48
        return types.SimpleNamespace(total=gib * 2**30, used=gib * 2**28)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1 if handle == "gpu2" else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index != 1:
            raise FakeNvmlError("Not Found")
        return "mig1"

    def nvmlDeviceGetAttributes_v2(self, handle: str) -> Any:
        return types.SimpleNamespace(multiprocessorCount=14)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return (8, 0)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle == "mig1":
            raise FakeNvmlError("Not Supported")
        return types.SimpleNamespace(gpu=50, memory=20)


def test_gpus_are_described_by_what_their_driver_knows() -> None:
    whole, poor, mig = Gpus(FakeNvml).devices()
    assert (whole.id, whole.kind, whole.model, whole.vram_mib) == (
        "GPU-0",
        DeviceKind.GPU,
        "NVIDIA L40S",
        49152,
    )
    assert whole.fp32_tflops == pytest.approx(40.0)
    assert whole.memory_bandwidth_gbps == pytest.approx(864.1, abs=0.1)
    assert poor.fp32_tflops == pytest.approx(40.0 * 0.81), "a consumer board does not sustain its top clock"
    assert poor.memory_bandwidth_gbps is None, "unknown is None, not 0"
    assert poor.model == "NVIDIA GPU"
    assert (mig.id, mig.kind, mig.vram_mib) == ("MIG-1", DeviceKind.MIG, 6144)
    assert mig.fp32_tflops == pytest.approx(2 * 14 * 64 * 2000e-6)
    assert mig.memory_bandwidth_gbps == pytest.approx(864.1 / 8, abs=0.1)


def test_a_load_that_the_driver_cannot_tell_is_none() -> None:
    loads = {load.device_id: load for load in Gpus(FakeNvml).loads()}
    assert loads["GPU-0"].utilisation == 0.5
    assert loads["MIG-1"].utilisation is None
    assert loads["MIG-1"].memory_occupancy == 0.25


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    gpus = Gpus()
    assert gpus.devices() == () or all(device.id.startswith(("GPU-", "MIG-")) for device in gpus.devices())
    assert Gpus(lambda: None).loads() == ()


# --- loads -----------------------------------------------------------------------------------------------


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def test_a_wedged_driver_makes_loads_unknown_and_holds_up_nobody(tmp_path: Path) -> None:
    release = threading.Event()
    wedged = False

    def gpu_loads() -> tuple[()]:
        if wedged:
            release.wait(20)
        return ()

    gauges = Gauges(tmp_path, gpu_loads, period_s=0.05)
    gauges.start()
    wait_for(lambda: gauges.loads, "loads")
    assert gauges.loads[0].device_id == "cpu"
    assert gauges.disk_free_mib
    wedged = True
    wait_for(lambda: not gauges.loads, "old loads are not told")
    assert gauges.disk_free_mib is None
    release.set()
    gauges.stop()


# --- renderers --------------------------------------------------------------------------------------------


@pytest.fixture
def plugin_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    package = tmp_path / "some_plugin"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(
        "import threading, types\n"
        "def broken(): raise RuntimeError('no licence')\n"
        "GOOD = types.SimpleNamespace(version=lambda: '4.2.1')\n"
        "ABSENT = types.SimpleNamespace(version=lambda: None)\n"
        "BROKEN = types.SimpleNamespace(version=broken)\n"
        "HANGS = types.SimpleNamespace(version=lambda: threading.Event().wait(30))\n"
    )
    (package / "bpy_runner.py").write_text(
        "def shim(directory):\n    (directory / 'blender').write_text('#!/bin/sh')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "some_plugin.plugin"
    for name in [name for name in sys.modules if name.startswith("some_plugin")]:
        del sys.modules[name]


def test_a_broken_plugin_does_not_hide_the_others(
    plugin_module: str, caplog: pytest.LogCaptureFixture
) -> None:
    points = [
        EntryPoint(name.lower(), f"{plugin_module}:{name}", capabilities.PLUGINS)
        for name in ("GOOD", "ABSENT", "BROKEN", "HANGS", "MISSING")
    ]
    assert capabilities.software_versions(points, timeout_s=0.5) == {"good": "4.2.1"}
    assert "broken is taken as absent: no licence" in caplog.text
    assert "hangs does not tell its version" in caplog.text
    assert "missing is taken as absent" in caplog.text


def test_a_blender_command_is_made_only_where_none_is_installed(plugin_module: str, tmp_path: Path) -> None:
    points = [EntryPoint("blender", f"{plugin_module}:GOOD", capabilities.PLUGINS)]
    bin_dir = tmp_path / "bin"
    software = {"blender": "4.2"}
    assert capabilities.bpy_shim({}, bin_dir, points=points) is None
    assert capabilities.bpy_shim(software, bin_dir, points=points, which=lambda name: f"/bin/{name}") is None
    assert not bin_dir.exists()
    assert capabilities.bpy_shim(software, bin_dir, points=points, which=lambda name: None) == bin_dir
    assert (bin_dir / "blender").exists()


# --- processes --------------------------------------------------------------------------------------------


def test_tagged_processes_are_found_and_killed_and_no_others() -> None:
    tag, other = AttemptId("kill-me"), AttemptId("spare-me")
    command = ["sleep", "100"]
    mine = subprocess.Popen(command, env={**os.environ, processes.TAG: tag}, start_new_session=True)
    spared = subprocess.Popen(command, env={**os.environ, processes.TAG: other})
    try:
        wait_for(lambda: processes.tagged([tag]), "the process has begun")
        assert [pid for pid, _ in processes.tagged([tag])] == [mine.pid]
        assert processes.kill_tagged([tag]) == 0
        assert mine.wait(5) == -9
        assert spared.poll() is None
        processes.kill_one(spared.pid, 1.0)
        assert spared.poll() is None, "another start time is another process"
    finally:
        spared.kill()
        spared.wait()
        mine.kill()
        mine.wait()
    assert processes.start_time(mine.pid) is None
