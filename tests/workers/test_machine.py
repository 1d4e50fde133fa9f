"""What a node says of its machine: CPU, GPUs, renderers, processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from farm.model.ids import AttemptId
from farm.model.machines import DeviceKind
from farm.settings import Settings, load_settings
from tests.waiting import wait_until
from workers import capabilities, cpu_benchmark, processes, renderers
from workers.benchmark import PLUGINS
from workers.gauges import Gauges
from workers.renderer_environment import renderer_environment

# --- CPU -------------------------------------------------------------------------------------------------


def test_the_cpu_is_measured_once_and_then_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cpu_benchmark.measured(tmp_path, 2)
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
    offered = capabilities.capabilities(settings, (), {"blender": "4.2"})
    (cpu,) = offered.devices
    assert cpu.kind is DeviceKind.CPU
    assert cpu.slots == capabilities.default_slots(offered.cpus)
    assert (cpu.fp32_tflops, cpu.memory_bandwidth_gbps) == (1.0, 2.0)
    assert offered.memory_mib > 100
    assert offered.os_family in ("linux", "macos", "windows")
    assert offered.cpu_arch in ("x86_64", "arm64")
    assert offered.attributes == {"attr.site": ("berlin",)}
    assert [capabilities.default_slots(cpus) for cpus in (1, 2, 3, 8)] == [1, 1, 1, 4]
    assert capabilities.capabilities(Settings(state_dir=tmp_path, slots=7), (), {}).slots == 7


# --- loads -----------------------------------------------------------------------------------------------


def test_old_loads_are_not_told(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path, period_s=0.05)
    gauges.start()
    wait_until(lambda: gauges.loads, "loads")
    assert [load.device_id for load in gauges.loads] == ["cpu"]
    assert gauges.disk_free_mib
    gauges.stop()
    wait_until(lambda: not gauges.loads, "old loads are not told")
    assert gauges.disk_free_mib is None


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
        EntryPoint(name.lower(), f"{plugin_module}:{name}", PLUGINS)
        for name in ("GOOD", "ABSENT", "BROKEN", "HANGS", "MISSING")
    ]
    assert renderers.software_versions(points, timeout_s=3) == {"good": "4.2.1"}
    wait_until(lambda: "broken is taken as absent: no licence" in caplog.text, "what the broken one says")
    assert "hangs does not tell its version" in caplog.text
    assert "missing is taken as absent" in caplog.text


def test_a_blender_command_is_made_only_where_none_is_installed(plugin_module: str, tmp_path: Path) -> None:
    points = [EntryPoint("blender", f"{plugin_module}:GOOD", PLUGINS)]
    bin_dir = tmp_path / "bin"
    software = {"blender": "4.2"}
    assert renderers.bpy_shim({}, bin_dir, points=points) is None
    assert renderers.bpy_shim(software, bin_dir, points=points, which=lambda name: f"/bin/{name}") is None
    assert not bin_dir.exists()
    assert renderers.bpy_shim(software, bin_dir, points=points, which=lambda name: None) == bin_dir
    assert (bin_dir / "blender").exists()


def test_versions_are_remembered_and_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert renderers.remembered(tmp_path) is None
    renderers.remember(tmp_path, {"blender": "4.2.1"})
    assert renderers.remembered(tmp_path) == {"blender": "4.2.1"}
    for broken in (b"", b"[]", b'{"blender": 4}', b"\xff"):
        (tmp_path / "software.json").write_bytes(broken)
        assert renderers.remembered(tmp_path) is None


# --- processes --------------------------------------------------------------------------------------------


def test_tagged_processes_are_found_and_killed_and_no_others() -> None:
    tag, other = AttemptId("kill-me"), AttemptId("spare-me")
    command = ["sleep", "100"]
    mine = subprocess.Popen(command, env={**os.environ, processes.TAG: tag}, start_new_session=True)
    spared = subprocess.Popen(command, env={**os.environ, processes.TAG: other})
    try:
        wait_until(lambda: processes.tagged([tag]), "the process has begun")
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


def test_renderers_find_the_systems_programs_before_those_of_the_farms_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join((own, "/usr/bin", "/bin")))  # as `activate` leaves it
    found = renderer_environment(load_settings(environment={}, state_dir=tmp_path))["PATH"]
    assert found.split(os.pathsep) == ["/usr/bin", "/bin", own]
