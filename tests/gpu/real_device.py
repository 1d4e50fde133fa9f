"""All of it on a real NVIDIA GPU: `python -m tests.gpu.real_device`, as root or not, on an idle machine.

Needs nothing but the driver. Looks at every device, forks, measures the first one against its sheet, keeps it
busy with a compute-bound and then a bandwidth-bound kernel while the telemetry watches, and holds what the
light probe makes of that against what is known of the kernels. Prints what it saw; ends with 1 when something
is not as it should be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict

from farm.model.ids import AttemptId
from farm.model.machines import Device, DeviceKind
from farm.model.work import Tag
from workers import benchmark
from workers.gpu import catalogue, cuda_rates, peaks
from workers.gpu.nvidia import Nvidia
from workers.processes import descendants
from workers.telemetry import Telemetry

_LOAD_S = 15.0
_NEAR_PEAK = (0.5, 1.15)
"""What may be measured of a sheet's figure."""
_wrong: list[str] = []


def say(what: str, value: object) -> None:
    print(f"{what:38} {value}", flush=True)


def check(what: str, is_right: bool, value: object) -> None:
    say(what, f"{value}{'' if is_right else '   <-- WRONG'}")
    if not is_right:
        _wrong.append(what)


def keep_busy(kind: str, seconds: float) -> None:
    """Runs in a process of its own."""
    with cuda_rates.context() as (cuda, device):
        if kind == "compute":
            cuda_rates.arithmetic_rate(cuda, device, seconds)
        else:
            cuda_rates.copy_rate(cuda, seconds)


def look(provider: Nvidia) -> tuple[Device, ...]:
    devices = provider.devices()
    for device in devices:
        for name, value in asdict(device).items():
            if value not in (None, "", (), {}, False, 0):
                say(f"  {name}", value)
    check("devices", bool(devices), len(devices))
    say("notes", "; ".join(provider.notes) or "none")
    return devices


def compare_sheet(device: Device) -> None:
    model = catalogue.look_up(device.model)
    check("in the catalogue", model is not None, device.model)
    told = benchmark.measure_gpu(device)
    check("measured through the driver alone", not isinstance(told, str), told)
    if isinstance(told, str):
        return
    for name in ("fp32_tflops", "memory_bandwidth_gbps"):
        sheet = getattr(device, name)
        share = told[name] / sheet if sheet else 0.0
        check(f"  {name}, of the sheet's", _NEAR_PEAK[0] <= share <= _NEAR_PEAK[1], f"{share:.0%}")


def fork(provider: Nvidia) -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, str(len(provider.devices())).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.wait()
    check("a forked child sees the devices", told.isdigit() and int(told) > 0, told)


def cost(telemetry: Telemetry) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    before, begin = time.process_time(), time.perf_counter()
    for _ in range(100):
        telemetry.poll()
    cpu_s, wall_s = (time.process_time() - before) / 100, (time.perf_counter() - begin) / 100
    check("CPU of one poll a second", cpu_s < 0.01, f"{cpu_s:.2%} of a core, {wall_s * 1000:.1f} ms")
    check("no new descriptors", len(os.listdir("/proc/self/fd")) == descriptors, descriptors)


def probe(telemetry: Telemetry, device: Device, kind: str, expected: Tag) -> None:
    attempt_id = AttemptId(kind)
    telemetry.begin(attempt_id, [device.id])
    load = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.real_device", kind, str(_LOAD_S)],
        env={**os.environ, **device.visible},
    )
    load.wait(_LOAD_S + 60)
    usage, found = telemetry.end(attempt_id)
    say(f"{kind}: usage", usage)
    check(f"{kind}: the probe says", found is not None and found.tag is expected, found)


def main() -> int:
    if len(sys.argv) == 3:
        keep_busy(sys.argv[1], float(sys.argv[2]))
        return 0
    provider = Nvidia()
    devices = look(provider)
    if not devices:
        return 1
    first = devices[0]
    fork(provider)
    for sample in provider.samples(with_processes=True):
        say(f"  {sample.device_id}", {k: v for k, v in asdict(sample).items() if v is not None})
    if first.kind is DeviceKind.GPU:
        compare_sheet(first)
        share = peaks.slice_share(first.vram_mib, first.vram_mib)
        check("a whole GPU has all slices", share == 1, share)
    telemetry = Telemetry([provider], devices, own_pids=descendants)
    cost(telemetry)
    telemetry.start()
    loads: list[tuple[str, Tag]] = [("compute", Tag.COMPUTE), ("bandwidth", Tag.BANDWIDTH)]
    for kind, expected in loads:
        probe(telemetry, first, kind, expected)
    telemetry.stop()
    say("wrong", ", ".join(_wrong) or "nothing")
    return 1 if _wrong else 0


if __name__ == "__main__":
    sys.exit(main())
