"""What the CPU can do, measured in about a second and kept in `state_dir`.

FP32: single precision matrix product (BLAS) on one thread at a time of numpy's choosing; memory bandwidth:
copying arrays that are larger than the caches, one thread for each CPU, read and written bytes counted.
Both are the best of several tries. Take them as +-25 %: on a machine with busy neighbours single tries of
the product vary by a third, and what a renderer reaches depends on its code. They order nodes; they are no
promise.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)
_BUDGET_S = 0.4
"""For each of the two measurements."""
_MATRIX = 1024
_COPY_MIB = 128
"""Of each of the two arrays; several times the caches of most machines."""
_LEAST_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFigures:
    fp32_tflops: float
    """10^12 FLOP/s, two digits."""
    memory_bandwidth_gbps: float
    """10^9 byte/s read and written, two digits."""


def measured(cache_dir: Path, cpus: int) -> CpuFigures:
    """The figures of this CPU, from the cache if they were measured before for the same CPU and count."""
    key = f"{cpu_model()} x {cpus}"
    path = cache_dir / "cpu.json"
    try:
        cached = json.loads(path.read_text(encoding="utf-8"))
        if cached["key"] == key:
            return CpuFigures(
                fp32_tflops=float(cached["fp32_tflops"]),
                memory_bandwidth_gbps=float(cached["memory_bandwidth_gbps"]),
            )
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet, or by something else: measure
    figures = measure(cpus)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": key, **asdict(figures)}), encoding="utf-8")
    except OSError as error:
        _LOG.warning("the CPU's figures cannot be kept and will be measured again: %s", error)
    return figures


def measure(cpus: int) -> CpuFigures:
    """Takes less than two seconds."""
    return CpuFigures(
        fp32_tflops=_two_digits(_sgemm_flops() / 1e12),
        memory_bandwidth_gbps=_two_digits(_copy_bytes_per_s(cpus) / 1e9),
    )


def cpu_model() -> str:
    """As the system names it: "AMD EPYC 9354 32-Core Processor"."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _sgemm_flops() -> float:
    import numpy as np  # a tenth of a second that only the first start pays

    rng = np.random.default_rng(1)
    a = rng.random((_MATRIX, _MATRIX), dtype=np.float32)
    b = rng.random((_MATRIX, _MATRIX), dtype=np.float32)
    c = np.empty_like(a)
    return 2.0 * _MATRIX**3 / _best(lambda: np.matmul(a, b, out=c))


def _copy_bytes_per_s(cpus: int) -> float:
    import numpy as np

    count = _COPY_MIB * 1024 * 1024 // 8 // cpus
    sources = [np.ones(count) for _ in range(cpus)]
    targets = [np.empty(count) for _ in range(cpus)]
    with ThreadPoolExecutor(cpus) as pool:  # a copy releases the GIL
        seconds = _best(lambda: list(pool.map(np.copyto, targets, sources)))
    return 2.0 * 8 * count * cpus / seconds


def _best(work: Callable[[], object]) -> float:
    """Least seconds of several tries; the first, which warms up, does not count."""
    work()
    best = float("inf")
    end = time.perf_counter() + _BUDGET_S
    tries = 0
    while tries < _LEAST_TRIES or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
        tries += 1
    return best


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
