"""Isolation, declared devices, other vendors, measurements."""

from __future__ import annotations

import ctypes
import json
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from farm.errors import UserError
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings
from workers import benchmark, capabilities
from workers.gpu import catalogue
from workers.gpu.amd import Amd
from workers.gpu.cuda_rates import ptx
from workers.gpu.declared import declared_devices
from workers.gpu.intel import Intel
from workers.gpu.isolation import device_environment
from workers.gpu.provider import Sample

CPU = Device(id="cpu", kind=DeviceKind.CPU, model="c")
DEMO = Path(__file__).parents[2] / "configs" / "demo-nodes.toml"


def device(name: str, vendor: str = "nvidia", **visible: str) -> Device:
    return Device(id=name, kind=DeviceKind.GPU, model=name, vendor=vendor, visible=visible)


# --- isolation -------------------------------------------------------------------------------------------


def test_a_task_sees_its_own_gpu_by_uuid() -> None:
    node = Capabilities(devices=(CPU, device("GPU-1"), device("GPU-2")))
    assert device_environment(node, "GPU-2") == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-2",
    }


def test_a_task_on_the_cpu_sees_no_gpu_and_a_machine_without_gpus_needs_nothing() -> None:
    assert device_environment(Capabilities(devices=(CPU, device("GPU-1"))), "cpu") == {
        "CUDA_VISIBLE_DEVICES": ""
    }
    assert device_environment(Capabilities(devices=(CPU,)), "cpu") == {}


def test_the_gpus_of_other_vendors_are_hidden() -> None:
    amd = device("amd-1", "amd", ROCR_VISIBLE_DEVICES="GPU-77", HIP_VISIBLE_DEVICES="0")
    intel = device("intel-1", "intel", ZE_AFFINITY_MASK="0", ZE_ENABLE_PCI_ID_DEVICE_ORDER="1")
    node = Capabilities(devices=(CPU, device("GPU-1"), amd, intel))
    assert device_environment(node, "amd-1") == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "GPU-77",
        "HIP_VISIBLE_DEVICES": "0",
        "ONEAPI_DEVICE_SELECTOR": "!level_zero:gpu",
    }
    seen = device_environment(node, "intel-1")
    assert (seen["ZE_AFFINITY_MASK"], seen["HIP_VISIBLE_DEVICES"]) == ("0", "-1")
    assert "ONEAPI_DEVICE_SELECTOR" not in seen
    assert device_environment(node, "GPU-1")["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert device_environment(node, "cpu")["ROCR_VISIBLE_DEVICES"] == ""


def test_a_task_on_several_gpus_sees_them_all() -> None:
    node = Capabilities(
        devices=(
            device("GPU-1"),
            device("GPU-2"),
            device("a", "amd", ROCR_VISIBLE_DEVICES="GPU-7", HIP_VISIBLE_DEVICES="0"),
            device("b", "amd", ROCR_VISIBLE_DEVICES="GPU-8", HIP_VISIBLE_DEVICES="0"),
        )
    )
    assert device_environment(node, "GPU-1,GPU-2")["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    both = device_environment(node, "a,b")
    assert (both["ROCR_VISIBLE_DEVICES"], both["HIP_VISIBLE_DEVICES"]) == ("GPU-7,GPU-8", "0,1")


# --- declared --------------------------------------------------------------------------------------------


def test_the_demo_s_nodes_can_all_be_declared() -> None:
    for name in ("gpu-mix", "compute", "bandwidth", "workstation", "amd"):
        devices = declared_devices(f"{DEMO}#{name}")
        assert devices
        assert all(d.is_declared and d.fp32_tflops and d.vram_mib for d in devices)
        assert len({d.id for d in devices}) == len(devices)
    mix = declared_devices(f"{DEMO}#gpu-mix")
    assert [d.kind for d in mix] == ["gpu", "gpu", "mig", "mig"]
    assert mix[0].fp32_tflops == 82.6
    assert mix[0].sources["fp32_tflops"] == "catalogue"
    assert mix[2].sources["fp32_tflops"] == "configured"


def test_a_node_with_declared_devices_asks_no_driver(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, devices=f"{DEMO}#workstation")
    assert capabilities.providers(settings) == ()
    offered = capabilities.capabilities(settings, (), {})
    assert [(d.model, d.slots, d.is_declared) for d in offered.devices[1:]] == [
        ("NVIDIA GeForce RTX 4070 (declared)", 2, True)
    ]


def test_a_node_s_settings_say_how_many_tasks_share_each_gpu(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, gpu_slots=3, gpu_task_vram_mib=7_000)
    offered = capabilities.with_gpus(Capabilities(devices=(CPU,)), (device("a"), device("b")), settings)
    assert [(d.slots, d.vram_per_task_mib) for d in offered.devices] == [(1, 0), (3, 7_000), (3, 7_000)]


@pytest.mark.parametrize(
    ("model", "strong_at"),
    [
        ("NVIDIA A100-SXM4-80GB", "bandwidth"),
        ("NVIDIA GeForce RTX 3060", "balanced"),
        ("NVIDIA L40S", "compute"),
    ],
)
def test_a_device_s_class_is_what_it_is_strong_at(tmp_path: Path, model: str, strong_at: str) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(f"[n]\ndevices = [{{ model = '{model}' }}]")
    (device,) = declared_devices(f"{path}#n")
    assert device.device_class == strong_at
    assert replace(device, memory_bandwidth_gbps=None).device_class == ""
    assert replace(device, kind=DeviceKind.CPU).device_class == ""


def test_a_quarter_of_the_catalogue_is_strong_at_each() -> None:
    known = catalogue.models().values()
    found = Counter(
        Device(
            id="g",
            kind=DeviceKind.GPU,
            model=each.name,
            fp32_tflops=each.fp32_tflops,
            memory_bandwidth_gbps=each.memory_bandwidth_gbps,
        ).device_class
        for each in known
    )
    assert 0.2 < found["bandwidth"] / len(known) < 0.3
    assert 0.2 < found["compute"] / len(known) < 0.3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[n]\ndevices = [{ model = 'Nobody 1' }]", "needs vram_mib"),
        ("[n]\ndevices = [{ modl = 'x' }]", "unknown key 'modl'"),
        ("[n]\ndevices = [{ }]", "it needs a model"),
        ("[n]\ndevices = ['x']", "must be a table"),
        ("[n]\ndevices = 3", "needs a list"),
        ("[n]\ndevices = [{ model = 'x', vram_mib = -1 }]", "number above 0"),
        ("[n]\ndevices = [{ model = 'x', kind = 'tpu' }]", "gpu or mig"),
        ("[n]\ndevices = [{ model = 'x', vendor = 'acme' }]", "one of nvidia"),
        ("[n]\ndevices = [{ model = 'NVIDIA L4', count = 65 }]", "more than 64"),
        ("[other]\n", "no node 'n'; it has other"),
        ("[[", "cannot read"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        declared_devices(f"{path}#n")


def test_a_declaration_without_a_node_is_refused() -> None:
    with pytest.raises(UserError, match="FILE#NAME"):
        declared_devices("nodes.toml")


# --- AMD -------------------------------------------------------------------------------------------------


class Kinds(IntEnum):
    HOTSPOT = 1
    CURRENT = 2
    GFX = 3


def fake_amdsmi(**other: Any) -> Any:
    told: dict[str, Any] = {
        "amdsmi_get_processor_handles": lambda: [1],
        "amdsmi_get_gpu_asic_info": lambda h: {
            "market_name": "AMD Radeon RX 7900 XTX",
            "asic_serial": "0x00AB12CD34EF5678",
            "target_graphics_version": "gfx1100",
        },
        "amdsmi_get_gpu_vram_info": lambda h: {"vram_size": 24560, "vram_max_bandwidth": "N/A"},
        "amdsmi_get_gpu_device_uuid": lambda h: "uuid-1",
        "amdsmi_get_gpu_device_bdf": lambda h: "0000:03:00.0",
        "amdsmi_get_gpu_driver_info": lambda h: {"driver_version": "6.12"},
        "amdsmi_get_gpu_activity": lambda h: {"gfx_activity": 98, "umc_activity": 40},
        "amdsmi_get_gpu_vram_usage": lambda h: {"vram_total": 24560, "vram_used": 5000},
        "amdsmi_get_power_info": lambda h: {"current_socket_power": "N/A", "average_socket_power": 300},
        "amdsmi_get_energy_count": lambda h: {"energy_accumulator": 1000, "counter_resolution": 15.3},
        "amdsmi_get_temp_metric": lambda h, kind, metric: 71,
        "amdsmi_get_gpu_process_list": lambda h: [{"pid": 5, "memory_usage": {"vram_mem": 2**30}}],
        "AmdSmiTemperatureType": Kinds,
        "AmdSmiTemperatureMetric": Kinds,
        "AmdSmiClkType": Kinds,
    }
    return types.SimpleNamespace(**{**told, **other})


def test_an_amd_gpu_is_described_by_catalogue_and_driver() -> None:
    amd = Amd(fake_amdsmi)
    (found,) = amd.devices()
    assert found.fp32_tflops == pytest.approx(30.7, abs=0.1), "half of what the vendor counts"
    assert (found.memory_bandwidth_gbps, found.vram_mib, found.api) == (960, 24560, "gfx1100")
    assert found.visible["ROCR_VISIBLE_DEVICES"] == "GPU-00ab12cd34ef5678"
    (told,) = amd.samples(with_processes=True)
    assert (told.busy, told.memory_busy, told.power_w, told.temperature_c) == (0.98, 0.4, 300, 71)
    assert told.energy_j == pytest.approx(0.0153)
    assert told.processes is not None
    assert told.processes[0].vram_mib == 1024


def test_no_rocm_is_no_amd_gpu_and_no_crash() -> None:
    def missing() -> Any:
        raise KeyError("libamd_smi.so")

    assert Amd(missing).devices() == ()
    assert Amd().devices() == ()
    assert Amd().samples(with_processes=True) == ()


def test_whatever_amdsmi_raises_means_that_it_cannot_say() -> None:
    def breaks(*_: object) -> Any:
        raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")

    names = [name for name in vars(fake_amdsmi()) if name.startswith("amdsmi_get")]
    for name in names:
        amd = Amd(lambda name=name: fake_amdsmi(**{name: breaks}))  # type: ignore[misc]
        amd.devices()
        amd.samples(with_processes=True)
    assert Amd(lambda: fake_amdsmi(amdsmi_get_gpu_device_uuid=breaks)).devices() == ()


# --- Intel -----------------------------------------------------------------------------------------------


class FakeZes:
    """Level Zero as `pyzes` hands it through: codes and structs to fill in."""

    class Handle(ctypes.c_void_p):
        pass

    zes_driver_handle_t = zes_device_handle_t = zes_mem_handle_t = Handle
    zes_engine_handle_t = zes_pwr_handle_t = zes_temp_handle_t = Handle

    class zes_device_properties_t(ctypes.Structure):  # noqa: N801 - the library's name
        class Core(ctypes.Structure):
            class Uuid(ctypes.Structure):
                _fields_ = (("id", ctypes.c_uint8 * 16),)

            _fields_ = (("uuid", Uuid),)

        _fields_ = (
            ("core", Core),
            ("modelName", ctypes.c_char * 64),
            ("driverVersion", ctypes.c_char * 64),
        )

    class zes_mem_state_t(ctypes.Structure):  # noqa: N801
        _fields_ = (("free", ctypes.c_uint64), ("size", ctypes.c_uint64))

    class zes_mem_bandwidth_t(ctypes.Structure):  # noqa: N801
        _fields_ = tuple(
            (n, ctypes.c_uint64) for n in ("readCounter", "writeCounter", "maxBandwidth", "timestamp")
        )

    def __init__(self) -> None:
        self.reads = 0

    def _one(self, *arguments: Any) -> int:
        count, handles = arguments[-2]._obj, arguments[-1]
        if handles is not None:
            handles[0] = self.Handle(1)
        count.value = 1
        return 0

    zesDriverGet = zesDeviceGet = zesDeviceEnumMemoryModules = _one  # noqa: N815

    def zesDeviceGetProperties(self, handle: Any, out: Any) -> int:
        out._obj.modelName, out._obj.driverVersion = b"Intel(R) Arc(TM) A770 Graphics", b"1.3"
        return 0

    def zesMemoryGetState(self, handle: Any, out: Any) -> int:
        out._obj.free, out._obj.size = 10 * 2**30, 16 * 2**30
        return 0

    def zesMemoryGetBandwidth(self, handle: Any, out: Any) -> int:
        self.reads += 1
        out._obj.maxBandwidth, out._obj.timestamp = 560 * 10**9, self.reads * 1_000_000
        out._obj.readCounter = self.reads * 280 * 10**9
        return 0


def test_an_intel_gpu_is_described_and_its_memory_traffic_read() -> None:
    intel = Intel(FakeZes)
    (found,) = intel.devices()
    assert (found.model, found.vram_mib) == ("Intel(R) Arc(TM) A770 Graphics", 16384)
    assert found.fp32_tflops
    assert found.visible["ZE_AFFINITY_MASK"] == "0"
    intel.samples(with_processes=False)
    (told,) = intel.samples(with_processes=False)
    assert told.memory_busy == pytest.approx(0.5)
    assert (told.vram_used_mib, told.busy) == (6144, None)


def test_no_level_zero_is_no_intel_gpu_and_no_crash() -> None:
    def missing() -> Any:
        raise OSError("libze_loader.so.1")

    assert Intel(missing).devices() == ()
    assert Intel().devices() == ()
    assert Intel(object).devices() == ()


# --- measurements ----------------------------------------------------------------------------------------


def real(name: str = "GPU-1", **other: Any) -> Device:
    figures = {
        "fp32_tflops": 82.6,
        "sources": {"fp32_tflops": "catalogue"},
        "driver": "580",
        "vram_mib": 24564,
    }
    return Device(id=name, kind=DeviceKind.GPU, model="RTX", vendor="nvidia", **{**figures, **other})


IDLE = (Sample(device_id="GPU-1", busy=0.0, vram_used_mib=1),)
RATES = {"fp32_tflops": 71.0, "memory_bandwidth_gbps": 930.0, "host_bandwidth_gbps": 25.0}


def test_what_was_measured_replaces_the_sheet_and_is_kept(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(device: Device) -> dict[str, float]:
        asked.append(device.id)
        return RATES

    for _ in range(2):
        (found,) = benchmark.with_measurements([real()], IDLE, tmp_path, measure=measure)
        assert (found.fp32_tflops, found.host_bandwidth_gbps) == (71.0, 25.0)
        assert found.sources["fp32_tflops"] == "measured"
    assert asked == ["GPU-1"]
    benchmark.with_measurements([real()], IDLE, tmp_path, measure=measure, again=True)
    benchmark.with_measurements([real(driver="590")], IDLE, tmp_path, measure=measure)
    assert len(asked) == 3, "again when asked, and under another driver"


def test_a_device_that_works_is_not_measured(tmp_path: Path) -> None:
    busy = (Sample(device_id="GPU-1", busy=0.6),)
    (found,) = benchmark.with_measurements([real()], busy, tmp_path, measure=lambda device: RATES)
    assert found.fp32_tflops == 82.6
    assert found.unknown["host_bandwidth_gbps"] == "not measured: it was not idle"


def test_without_a_driver_to_measure_with_the_sheet_stands_and_says_so(tmp_path: Path) -> None:
    (found,) = benchmark.with_measurements([real()], IDLE, tmp_path)
    assert found.fp32_tflops == 82.6
    assert "libcuda" in found.unknown["host_bandwidth_gbps"]
    lines = benchmark.run_benchmark([real()], IDLE, tmp_path, again=True)
    assert "catalogue" in lines[0]
    assert "not this machine's own" in lines[1]
    assert "MB/s" in lines[2]


def test_a_ray_rate_is_measured_when_asked_for_and_kept(tmp_path: Path) -> None:
    asked: list[tuple[bool, str]] = []

    def ray_rate(is_gpu: bool, environment: Mapping[str, str]) -> float:
        asked.append((is_gpu, environment["CUDA_VISIBLE_DEVICES"]))
        return 1234.5

    well = real(sources={"fp32_tflops": "measured"})
    both = (CPU, well)

    def look(**other: Any) -> list[float | None]:
        found = benchmark.with_ray_rates(
            both, tmp_path, lambda device: {"CUDA_VISIBLE_DEVICES": device.id}, **other
        )
        return [device.ray_rate_mrays for device in found]

    assert look() == [None, None], "an agent that starts measures nothing"
    assert look(ray_rate=ray_rate) == [1234.5, 1234.5]
    assert look(ray_rate=ray_rate) == look() == [1234.5, 1234.5]
    assert asked == [(False, "cpu"), (True, "GPU-1")]
    (found,) = benchmark.with_ray_rates([well], tmp_path)
    assert (found.sources["ray_rate_mrays"], "ray_rate_mrays" in found.unknown) == ("measured", False)


def test_a_ray_rate_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    refused = benchmark.with_ray_rates([CPU], tmp_path, ray_rate=lambda is_gpu, environment: "no Blender")
    assert (refused[0].ray_rate_mrays, refused[0].unknown["ray_rate_mrays"]) == (
        None,
        "not measured: no Blender",
    )
    (unmeasured,) = benchmark.with_ray_rates(
        [real(unknown={"host_bandwidth_gbps": "not measured: no libcuda"})],
        tmp_path,
        ray_rate=lambda is_gpu, environment: pytest.fail("a GPU that could not be measured is not tried"),
    )
    assert unmeasured.unknown["ray_rate_mrays"] == "not measured: no libcuda"
    (declared,) = benchmark.with_ray_rates([real(is_declared=True)], tmp_path)
    assert "declared" in declared.unknown["ray_rate_mrays"]


def test_the_disk_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = benchmark.disk_rates(tmp_path)
    assert rates is not None
    assert min(rates) > 0
    monkeypatch.setattr(benchmark, "disk_rates_mbps", lambda directory: (5.0, 6.0))
    assert benchmark.disk_rates(tmp_path) == rates
    assert benchmark.disk_rates(tmp_path, again=True) == (5.0, 6.0)
    offered = capabilities.capabilities(Settings(state_dir=tmp_path), (), {})
    assert (offered.disk_write_mbps, offered.disk_read_mbps) == (5.0, 6.0)


@pytest.mark.parametrize(
    "output", [b"", b"x", b"[]", b"{}", b'{"error": "cuInit answers 100"}', b'{"fp32_tflops": NaN}', b"null"]
)
def test_a_measurement_that_fails_says_why(output: bytes) -> None:
    told = benchmark.read_rates(output)
    assert isinstance(told, str)
    assert told.startswith("not measured")


def test_a_damaged_cache_is_measured_anew(tmp_path: Path) -> None:
    for text in ("", "[]", '{"RTX / 580 / gpu 24564": 5}', json.dumps({"x": {"fp32_tflops": -1}})):
        (tmp_path / "gpus.json").write_text(text)
        (found,) = benchmark.with_measurements([real()], IDLE, tmp_path, measure=lambda device: RATES)
        assert found.fp32_tflops == 71.0


def test_the_kernel_counts_what_it_does() -> None:
    text = ptx("6.0", "sm_50")
    assert text.count("fma.rn.f32") == 32
    assert text.count("{") == text.count("}")
