"""The telemetry: what it tells, when, and what it sums up; with providers that behave as told."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from farm.model.ids import AttemptId
from farm.model.machines import Device, DeviceKind, DeviceLoad
from farm.model.work import Tag
from tests.waiting import wait_until
from workers.gpu import health
from workers.gpu.provider import Process, Sample
from workers.telemetry import Telemetry

A = AttemptId("a")


def gpu(name: str = "GPU-1", **other: Any) -> Device:
    return Device(id=name, kind=DeviceKind.GPU, model="RTX", vram_mib=1000, telemetry=("slowdowns",), **other)


class Told:
    """A provider that says what the test says, on a clock of its own."""

    vendor = "test"
    notes: tuple[str, ...] = ()

    def __init__(self, *samples: Sample) -> None:
        self.now = list(samples)
        self.told: dict[str, str] = {}
        self.node_fault = ""
        self.there: tuple[Device, ...] = ()
        self.clock = time.monotonic()

    def devices(self) -> tuple[Device, ...]:
        return self.there

    def samples(self, *, with_processes: bool) -> tuple[Sample, ...]:
        self.clock += 1.0
        return tuple(replace(sample, read_at=self.clock) for sample in self.now)

    def faults(self) -> dict[str, str]:
        told, self.told = self.told, {}
        return told


class Heard:
    def __init__(self, provider: Told, *devices: Device, own: frozenset[int] | None = None) -> None:
        self.changes = 0
        self.faults: list[tuple[str, str]] = []
        self.devices: list[str] = []
        self.telemetry = Telemetry(
            [provider],
            devices or (gpu(),),
            own_pids=lambda: own,
            on_change=self.changed,
            on_fault=lambda device_id, reason: self.faults.append((device_id, reason)),
            on_devices=lambda devices: self.devices.extend(device.id for device in devices),
        )

    def changed(self) -> None:
        self.changes += 1


def sample(**other: Any) -> Sample:
    usual: dict[str, Any] = {"busy": 0.0, "vram_used_mib": 100}
    return Sample(device_id="GPU-1", vram_total_mib=1000, **{**usual, **other})


@pytest.mark.parametrize(
    "news",
    [
        {"busy": 0.5},
        {"temperature_c": 90.0},
        {"vram_used_mib": 980},
        {"slowdowns": ("hardware thermal slowdown",)},
        {"fault": "lost: it has fallen off the bus"},
        {"compute_mode": 2},
        {"power_limit_share": 0.5},
    ],
)
def test_what_crosses_a_threshold_is_told_at_once(news: dict[str, Any]) -> None:
    provider = Told(sample())
    heard = Heard(provider)
    heard.telemetry.poll()
    heard.telemetry.poll()
    assert heard.changes == 0, "nothing has changed"
    provider.now = [replace(provider.now[0], **news)]
    heard.telemetry.poll()
    assert heard.changes == 1
    heard.telemetry.poll()
    assert heard.changes == 1, "told once"


def test_a_load_that_trembles_around_a_threshold_is_not_told_again_and_again() -> None:
    provider = Told(sample(temperature_c=84.0))
    heard = Heard(provider)
    for degrees in (84.0, 86.0, 84.0, 86.0, 81.0, 86.0):
        provider.now = [sample(temperature_c=degrees)]
        heard.telemetry.poll()
    assert heard.changes == 1
    provider.now = [sample(temperature_c=70.0)]
    heard.telemetry.poll()
    assert heard.changes == 2


def test_a_complaint_is_kept_for_a_while() -> None:
    provider = Told(sample(slowdowns=("power brake",)))
    heard = Heard(provider)
    for slowdowns in (("power brake",), (), ("power brake",), ()):
        provider.now = [sample(slowdowns=slowdowns)]
        heard.telemetry.poll()
    assert heard.changes == 0
    assert heard.telemetry.loads[0].health == 0.5


def test_a_lost_device_stays_lost() -> None:
    provider = Told(sample())
    heard = Heard(provider)
    heard.telemetry.poll()
    provider.told = {"GPU-1": "Xid 79: fell off the bus", "GPU-of-others": "x"}
    heard.telemetry.poll()
    heard.telemetry.poll()
    assert heard.faults == [("GPU-1", "Xid 79: fell off the bus")]
    assert heard.telemetry.loads[0].fault == "Xid 79: fell off the bus"


def test_a_fault_of_the_node_is_told() -> None:
    provider = Told(sample())
    heard = Heard(provider)
    heard.telemetry.poll()
    provider.node_fault = "reboot"
    heard.telemetry.poll()
    assert heard.telemetry.node_fault == "reboot"
    assert heard.changes == 1


def test_an_attempt_s_use_is_summed_up() -> None:
    provider = Told(sample(busy=0.5, memory_busy=0.25, power_w=300.0, energy_j=0.0))
    heard = Heard(provider)
    heard.telemetry.poll()
    heard.telemetry.begin(A, ["GPU-1"])
    for number in range(4):
        provider.now = [
            sample(
                busy=1.0 if number else 0.5,
                memory_busy=0.3,
                vram_used_mib=100 + 100 * number,
                energy_j=1000.0 + 250 * number,
                power_w=250.0,
                slowdowns=("power brake",) if number == 2 else (),
            )
        ]
        heard.telemetry.poll()
    usage, _ = heard.telemetry.end(A)
    assert usage is not None
    assert usage.device_model == "RTX"
    assert usage.memory_busy == pytest.approx(0.3)
    assert usage.vram_peak_mib == 400
    assert usage.throttled_s == pytest.approx(1.0, abs=0.1)
    assert usage.energy_j is not None
    assert usage.energy_j >= 750
    assert heard.telemetry.end(A) == (None, None)


def test_two_attempts_share_a_device_s_energy() -> None:
    provider = Told(sample(energy_j=0.0))
    heard = Heard(provider)
    heard.telemetry.begin(A, ["GPU-1"])
    heard.telemetry.begin(AttemptId("b"), ["GPU-1"])
    heard.telemetry.poll()
    provider.now = [sample(energy_j=1000.0)]
    heard.telemetry.poll()
    used = [heard.telemetry.end(attempt)[0] for attempt in (A, AttemptId("b"))]
    assert [u.energy_j for u in used if u is not None] == [500, 500]
    assert [u.vram_peak_mib for u in used if u is not None] == [None, None], "whose is it?"


def test_a_device_without_a_counter_is_summed_by_its_power() -> None:
    provider = Told(sample(power_w=100.0))
    heard = Heard(provider)
    heard.telemetry.poll()
    heard.telemetry.begin(A, ["GPU-1"])
    heard.telemetry.poll()
    before = heard.telemetry._watched[A].energy_j or 0.0
    for _ in range(3):
        heard.telemetry.poll()
    usage, _ = heard.telemetry.end(A)
    assert usage is not None
    assert usage.energy_j is not None
    assert usage.energy_j - before == pytest.approx(300.0, abs=0.1)


def test_an_attempt_on_the_cpu_uses_no_gpu() -> None:
    heard = Heard(Told(), Device(id="cpu", kind=DeviceKind.CPU, model="c"), gpu())
    heard.telemetry.begin(A, ["cpu"])
    assert heard.telemetry.end(A) == (None, None)


def test_the_first_seconds_are_a_probe() -> None:
    provider = Told(sample(busy=0.95, memory_busy=0.7))
    heard = Heard(provider)
    heard.telemetry.begin(A, ["GPU-1"])
    for _ in range(8):
        heard.telemetry.poll()
    _, probe = heard.telemetry.end(A)
    assert probe is not None
    assert (probe.tag, probe.device_model) == (Tag.BANDWIDTH, "RTX")


@pytest.mark.parametrize(
    "sign",
    [
        {"busy": 0.01},
        {"vram_used_mib": 500},
        {"processes": (Process(pid=1, vram_mib=10),)},
        {"busy": None},
        {"vram_used_mib": None},
    ],
)
def test_a_gpu_of_which_an_attempt_showed_no_sign_was_not_used(sign: dict[str, Any]) -> None:
    provider = Told(sample())
    heard = Heard(provider, own=frozenset({1}))
    heard.telemetry.poll()
    heard.telemetry.begin(A, ["GPU-1"])
    for _ in range(6):
        heard.telemetry.poll()
    assert heard.telemetry.unused_s(A) >= 5
    assert heard.telemetry.unused_s(AttemptId("on the CPU")) == 0
    shown = Told(sample(**sign) if None in sign.values() else sample())
    other = Heard(shown, own=frozenset({1}))
    other.telemetry.poll()
    other.telemetry.begin(A, ["GPU-1"])
    other.telemetry.poll()
    shown.now = [sample(**sign)]
    other.telemetry.look_at_processes_next()
    for _ in range(6):
        other.telemetry.poll()
    assert other.telemetry.unused_s(A) == 0, "it was used, or that cannot be told"


def test_what_others_hold_of_a_device_is_told_apart() -> None:
    processes = (Process(pid=1, vram_mib=300), Process(pid=2, vram_mib=200))
    provider = Told(sample(vram_used_mib=500, processes=processes))
    heard = Heard(provider, own=frozenset({1}))
    heard.telemetry.begin(A, ["GPU-1"])
    heard.telemetry.poll()
    assert heard.telemetry.loads[0].vram_foreign_mib == 200
    usage, _ = heard.telemetry.end(A)
    assert usage is not None
    assert usage.vram_peak_mib == 300
    in_a_container = Heard(provider, own=None)
    in_a_container.telemetry.poll()
    assert in_a_container.telemetry.loads[0].vram_foreign_mib is None, (
        "pids are the host's: it cannot be told"
    )


def test_an_exclusive_device_that_another_process_has_is_closed() -> None:
    provider = Told(sample(compute_mode=3, processes=(Process(pid=2, vram_mib=1),)))
    heard = Heard(provider, own=frozenset({1}))
    heard.telemetry.poll()
    assert heard.telemetry.loads[0].closed == "compute mode is EXCLUSIVE, and process 2 has it"
    alone = Heard(Told(sample(compute_mode=3, processes=())), own=frozenset({1}))
    alone.telemetry.poll()
    assert alone.telemetry.loads[0].closed == ""


def test_a_gpu_that_is_cut_anew_is_looked_at_anew() -> None:
    provider = Told(sample(), replace(sample(), device_id="MIG-old"))
    heard = Heard(provider, gpu(), gpu("MIG-old"))
    heard.telemetry.poll()
    provider.now[1] = Sample(device_id="MIG-old", fault="gone: the GPU was cut up anew")
    provider.there = (gpu("MIG-new"),)
    heard.telemetry.poll()
    assert heard.devices == ["GPU-1", "MIG-new"], "a GPU that is only not found stays"
    assert heard.faults == []
    assert [load.device_id for load in heard.telemetry.loads] == ["GPU-1"]


def test_new_instances_are_found_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.ENUMERATE_S", 0.0)
    provider = Told(sample())
    heard = Heard(provider, gpu())
    provider.there = (gpu(), gpu("MIG-new"))
    heard.telemetry.poll()
    assert heard.devices == ["GPU-1", "MIG-new"]
    heard.telemetry.poll()
    assert len(heard.devices) == 2, "told once"
    provider.there = (gpu("MIG-part", parent_id="GPU-1"),)
    heard.telemetry.poll()
    assert heard.devices[2:] == ["MIG-new", "MIG-part"], "its parts stand in for a GPU"


def test_a_wedged_driver_closes_its_devices_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.telemetry.SILENT_S", 0.1)
    release = threading.Event()

    class Wedged(Told):
        def faults(self) -> dict[str, str]:
            if len(polls) > 2:
                release.wait(20)
            polls.append(1)
            return {}

    polls: list[int] = []
    telemetry = Telemetry([Wedged(sample())], [gpu()], period_s=0.02)
    telemetry.start()
    wait_until(lambda: telemetry.loads, "loads")
    wait_until(lambda: "has not answered" in telemetry.loads[0].closed, "the device is closed")
    telemetry.stop()
    release.set()


def test_a_provider_s_oddity_does_not_end_the_telemetry() -> None:
    class Odd(Told):
        def faults(self) -> dict[str, str]:
            polls.append(1)
            if len(polls) == 1:
                raise RuntimeError("strange")
            return {}

    polls: list[int] = []
    telemetry = Telemetry([Odd(sample())], [gpu()], period_s=0.02)
    telemetry.start()
    wait_until(lambda: telemetry.loads, "loads")
    telemetry.stop()


@pytest.mark.parametrize(
    ("news", "health_is", "complaint"),
    [
        ({}, 1.0, ""),
        (
            {"slowdowns": ("power brake",), "clock_mhz": 600, "clock_most_mhz": 2000},
            0.3,
            "throttled: power brake",
        ),
        ({"slowdowns": ("power brake",)}, 0.5, "throttled: power brake"),
        ({"power_limit_share": 0.5}, 0.794, "power limit 50 % of what it is made for"),
        ({"link_width": 4, "link_most_width": 16, "busy": 0.9}, 0.9, "PCIe x4 of x16: seated badly?"),
        ({"link_width": 4, "link_most_width": 16, "busy": 0.1}, 1.0, ""),
    ],
)
def test_health_is_what_a_device_still_gives(news: dict[str, Any], health_is: float, complaint: str) -> None:
    load = health.load_of(sample(**news), gpu())
    assert load.health == pytest.approx(health_is, abs=0.001)
    assert load.complaint.replace("%", " %").replace("  ", " ") == complaint


def test_signs_of_an_idle_well_device_are_none() -> None:
    assert health.signs(DeviceLoad(device_id="x")) == frozenset()
