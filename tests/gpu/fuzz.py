"""Damage fixtures in every way and look at each with our provider. Arguments: path, count, seed.

Ends with 0 when nothing was raised and every figure told was a figure.
"""

from __future__ import annotations

import math
import os
import random
import sys
from pathlib import Path
from typing import Any

from tests.gpu.fakes import as_text, board, busy, node
from workers.gpu import health
from workers.gpu.nvidia import Nvidia

STRANGE = (
    "", "0", "-1", "1e300", "nan", "inf", "4294967296", "9007199254740993", "x", "\udcff\udcfe", "10|@",
    "1@0|", "5+/s", "|||@1", "\x1b[2J", "GPU-n-0000", "%n%s", "A" * 500, "NOT_SUPPORTED",
    "GPU_IS_LOST", "0x40",
)  # fmt: skip
ERRORS = (
    "UNKNOWN",
    "NOT_SUPPORTED",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "NO_PERMISSION",
    "INVALID_ARGUMENT",
    "nonsense",
)
SYMBOLS = (
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMigMode", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetPciInfo_v3",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlEventSetCreate",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetBrand",
)  # fmt: skip


def damaged(lines: list[str], random_: random.Random) -> str:
    changed = list(lines)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(changed))
        key, _, _value = changed[at].partition(" = ")
        what = random_.randrange(8)
        if what == 0:
            del changed[at]
            if not changed:
                changed = ["count = 1\n"]
        elif what == 1:
            changed[at] = f"{key} = {random_.choice(STRANGE)}\n"
        elif what == 2:
            cut = random_.randrange(len(changed[at]) + 1)
            changed[at] = changed[at][:cut]
        elif what == 3:
            changed.append(f"error.{random_.choice(SYMBOLS)} = {random_.choice(ERRORS)}\n")
        elif what == 4:
            changed.append(f"gpu.0.error.{random_.choice(SYMBOLS)} = {random_.choice(ERRORS)}\n")
        elif what == 5:
            changed.append(f"missing.{random_.choice(SYMBOLS)} = 1\n")
        elif what == 6:
            changed[at] = f"{key} = {random_.choice(lines).partition(' = ')[2]}"
        else:
            changed.append(
                f"event.0.gpu = {random_.choice(STRANGE)}\nevent.0.xid = {random_.choice(STRANGE)}\n"
            )
    return "".join(changed)


def check(value: Any, where: str) -> None:
    if isinstance(value, float):
        assert math.isfinite(value), where
        assert value >= 0, where


def main() -> None:
    path, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    random_ = random.Random(seed)
    gpu = board("h100")
    told = {2: 90, 10: 40, 12: 30}
    whole = node(gpu | busy(gpu, 90, 40) | {"process": {0: {"pid": 5, "mib": 9}}, "event_types": 10})
    cut = node(board("a100", mig=("3g.40gb", "1g.10gb")), board("rtx4090", 1))
    bases = [
        [*as_text(whole).splitlines(keepends=True), *(f"gpu.0.gpm.{k} = {v}\n" for k, v in told.items())],
        as_text(cut).splitlines(keepends=True),
    ]
    fresh = path.with_suffix(".new")
    for number in range(count):
        text = damaged(random_.choice(bases), random_)
        fresh.write_text(text, errors="surrogateescape")
        os.replace(fresh, path)
        provider = Nvidia()
        try:
            devices = {device.id: device for device in provider.devices()}
            provider.samples(with_processes=True)
            samples = provider.samples(with_processes=True)
            provider.faults()
            for device in devices.values():
                for name in ("fp32_tflops", "memory_bandwidth_gbps", "tdp_w", "vram_mib"):
                    check(getattr(device, name), name)
                assert device.model.isprintable(), device.model
            for sample in samples:
                load = health.load_of(sample, devices[sample.device_id])
                health.signs(load)
                for share in (load.utilisation, load.memory_occupancy, load.memory_busy, load.health):
                    assert share is None or 0 <= share <= 1, share
                check(load.power_w, "power_w")
        except Exception:
            sys.stderr.write(f"fixture {number} of seed {seed}:\n{text}\n")
            raise


if __name__ == "__main__":
    main()
