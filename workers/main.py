"""`farm worker`: this node's agent as a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from farm.errors import UserError
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings
from farm.text import clean, duration
from workers import benchmark
from workers.agent import start_agent
from workers.capabilities import providers
from workers.cpu_benchmark import cpu_model, measured, usable_cpus
from workers.gpu.isolation import device_environment
from workers.renderer_environment import renderer_environment
from workers.supervisor import HostCommand

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5


def run_benchmark(settings: Settings, *, again: bool) -> int:
    """Measure this machine's devices and print what they give; returns the exit status."""
    cpus = usable_cpus()
    if again:
        (settings.state_dir / "cpu.json").unlink(missing_ok=True)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    figures = measured(settings.state_dir, cpus)
    print(
        f"{clean(cpu_model(), one_line=True)} x {cpus}: {figures.fp32_tflops:.3g} TFLOPS, "
        f"memory {figures.memory_bandwidth_gbps:.3g} GB/s (measured)"
    )
    asked = providers(settings)
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model=clean(cpu_model(), limit=100, one_line=True))
    devices = [cpu, *(device for provider in asked for device in provider.devices())]
    machine = Capabilities(devices=tuple(devices))
    environment = renderer_environment(settings)
    samples = [sample for provider in asked for sample in provider.samples(with_processes=False)]
    for line in benchmark.run_benchmark(
        devices,
        samples,
        settings.state_dir,
        again=again,
        ray_rate=benchmark.ray_rate_of_plugins(),
        environment_of=lambda device: environment | device_environment(machine, device.id),
    ):
        print(clean(line, one_line=True))
    for note in (note for provider in asked for note in provider.notes):
        print(note)
    return 0


def run_worker(
    settings: Settings,
    *,
    host_command: HostCommand | None = None,
    capabilities: Capabilities | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status.

    The first signal drains: no more work is taken, running attempts may finish for `drain_grace_s`, then
    they are handed back. The second kills and hands back at once. SIGUSR2 replaces this process by a new
    start of the same program, an upgraded one perhaps, which goes on with what runs. 0: ended as asked;
    1: the agent failed; 2: it could not start (such as: another agent uses the state directory), with the
    reason on standard error. host_command and capabilities are as for `start_agent`.
    """
    try:
        agent = start_agent(settings, host_command=host_command, capabilities=capabilities)
    except UserError as error:
        print(clean(str(error), one_line=True), file=sys.stderr)
        return 2
    signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    is_to_be_replaced = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: is_to_be_replaced.set())
    has_drained = False
    while agent.is_alive and signals < 2:
        if is_to_be_replaced.is_set() and signals == 0:
            _LOG.info("this agent is replaced; what runs goes on")
            agent.leave()
            _replace_this_process()
        if signals == 1 and not has_drained:
            has_drained = True
            _LOG.info(
                "draining: running attempts have %s; a second signal ends them now",
                duration(settings.drain_grace_s),
            )
            agent.drain()
        if agent.wait(_LOOK_S):
            break
    if not agent.is_alive:
        return 1
    return 0 if agent.stop() else 1


def _replace_this_process() -> NoReturn:
    """Start the program anew in this process: same arguments, same environment, same pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
