"""A process that reads a fake driver on request: one JSON line in, one out.

`new` makes a fresh provider; `devices`, `samples`, `processes`, `faults` ask it; `fork` asks it for devices
in a child that was forked after the start; `polls` asks 10,000 times how they are. Every answer also has
notes and node_fault. `cost` tells the CPU seconds of a look.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from workers.gpu.nvidia import Nvidia
from workers.processes import descendants
from workers.telemetry import PERIOD_S, PROCESSES_S, Telemetry


def main() -> None:
    provider = Nvidia()
    for line in sys.stdin:
        word = line.strip()
        answer: Any = None
        if word == "new":
            provider = Nvidia()
        elif word == "devices":
            answer = [asdict(device) for device in provider.devices()]
        elif word in ("samples", "processes"):
            answer = [asdict(s) for s in provider.samples(with_processes=word == "processes")]
        elif word == "faults":
            answer = provider.faults()
        elif word == "fork":
            answer = in_child(provider)
        elif word == "polls":
            for number in range(10_000):
                provider.samples(with_processes=number % 10 == 0)
                provider.faults()
        elif word == "cost":
            answer = cost_s(provider)
        elif word == "descriptors":
            answer = len(os.listdir("/proc/self/fd"))
        told = {"answer": answer, "notes": provider.notes, "node_fault": provider.node_fault}
        print(json.dumps(told), flush=True)


def cost_s(provider: Nvidia) -> float:
    """CPU seconds of one look at all devices, with the process lists as often as an agent asks for them."""
    telemetry = Telemetry([provider], provider.devices(), own_pids=descendants)
    telemetry.poll()
    looks = 200
    before = time.process_time()
    for number in range(looks):
        if number % int(PROCESSES_S / PERIOD_S) == 0:
            telemetry.look_at_processes_next()
        telemetry.poll()
    return (time.process_time() - before) / looks


def in_child(provider: Nvidia) -> list[str]:
    read, write = os.pipe()
    if os.fork() == 0:
        ids = [device.id for device in provider.devices()]
        os.write(write, json.dumps(ids).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.wait()
    seen: list[str] = json.loads(told)
    return seen


if __name__ == "__main__":
    main()
