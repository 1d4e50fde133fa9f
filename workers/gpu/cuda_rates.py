"""What an NVIDIA GPU really gives, measured through the driver alone: no toolkit is needed.

A program of its own (`python -m workers.gpu.cuda_rates`): the agent must never hold a CUDA context. It
measures the one device that CUDA_VISIBLE_DEVICES leaves, for a few seconds, and prints one line of JSON:

    {"fp32_tflops": ..., "memory_bandwidth_gbps": ..., "host_bandwidth_gbps": ...}

or {"error": "..."}. FP32 counts fused multiply-adds, two operations each; memory bandwidth counts bytes read
and written by copies on the device; the host's rate is from page-locked memory. Each is the best of several.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

_ACCUMULATORS: Final = 8
_UNROLLED: Final = 4
_ROUNDS: Final = 4096
_THREADS: Final = 256
_BLOCKS_PER_MULTIPROCESSOR: Final = 16
_COPY_BYTES: Final = 512 * 1024 * 1024
_HOST_BYTES: Final = 128 * 1024 * 1024
BUDGET_S: Final = 0.6
"""For each of the three."""
_TARGETS: Final = (("6.0", "sm_50"), ("6.3", "sm_75"), ("8.0", "sm_90"))
"""PTX versions and the least hardware; the driver compiles for what is there."""
_MULTIPROCESSORS: Final = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""


class NoRate(Exception):
    """The driver will not have it."""


def ptx(version: str, target: str) -> str:
    """A kernel of nothing but fused multiply-adds, independent enough to fill the pipes."""
    registers = range(1, _ACCUMULATORS + 1)
    start = "\n".join(f"  add.f32 %f{i}, %f0, 0f{0x3F800000 + i * 65536:08X};" for i in registers)
    step = "\n".join(f"  fma.rn.f32 %f{i}, %f{i}, %f10, %f11;" for i in registers)
    added = "\n".join(f"  add.f32 %f1, %f1, %f{i};" for i in registers if i > 1)
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry multiply_add(.param .u64 out, .param .u32 rounds)
{{
  .reg .pred %p0;
  .reg .f32 %f<12>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  ld.param.u32 %r0, [rounds];
  cvta.to.global.u64 %rd1, %rd0;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  cvt.rn.f32.u32 %f0, %r4;
  mov.f32 %f10, 0f3F7FFF00;
  mov.f32 %f11, 0f3A83126F;
{start}
AGAIN:
{chr(10).join([step] * _UNROLLED)}
  sub.u32 %r0, %r0, 1;
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra AGAIN;
{added}
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.f32 [%rd3], %f1;
  ret;
}}
"""


class Cuda:
    """The driver's API, with errors raised."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoRate("no CUDA driver library (libcuda.so.1)") from error

    def call(self, function: str, *arguments: object) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise NoRate(f"the CUDA driver has no {function}") from error
        if code != 0:
            raise NoRate(f"{function} answers {code}")


@contextlib.contextmanager
def context() -> Iterator[tuple[Cuda, ctypes.c_int]]:
    """The first visible device, with a context of this process. Raises NoRate."""
    cuda = Cuda()
    cuda.call("cuInit", 0)
    device = ctypes.c_int()
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    held = ctypes.c_void_p()
    cuda.call("cuCtxCreate_v2", ctypes.byref(held), 0, device)
    try:
        yield cuda, device
    finally:
        cuda.call("cuCtxDestroy_v2", held)


def measure() -> dict[str, float]:
    """Of the first visible device. Raises NoRate."""
    with context() as (cuda, device):
        return {
            "memory_bandwidth_gbps": copy_rate(cuda) / 1e9,
            "host_bandwidth_gbps": _host_rate(cuda) / 1e9,
            "fp32_tflops": arithmetic_rate(cuda, device) / 1e12,
        }


def _allocate(cuda: Cuda, size: int) -> ctypes.c_uint64:
    pointer = ctypes.c_uint64()
    cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer


def copy_rate(cuda: Cuda, budget_s: float = BUDGET_S) -> float:
    """Bytes per second, read and written."""
    source, target = _allocate(cuda, _COPY_BYTES), _allocate(cuda, _COPY_BYTES)
    try:
        seconds = _best(
            cuda,
            lambda: cuda.call("cuMemcpyDtoD_v2", target, source, ctypes.c_size_t(_COPY_BYTES)),
            budget_s,
        )
    finally:
        cuda.call("cuMemFree_v2", source)
        cuda.call("cuMemFree_v2", target)
    return 2 * _COPY_BYTES / seconds


def _host_rate(cuda: Cuda) -> float:
    """Bytes per second from page-locked memory to the device."""
    host = ctypes.c_void_p()
    cuda.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(_HOST_BYTES), 0)
    target = _allocate(cuda, _HOST_BYTES)
    try:
        seconds = _best(
            cuda,
            lambda: cuda.call("cuMemcpyHtoD_v2", target, host, ctypes.c_size_t(_HOST_BYTES)),
            BUDGET_S,
        )
    finally:
        cuda.call("cuMemFree_v2", target)
        cuda.call("cuMemFreeHost", host)
    return _HOST_BYTES / seconds


def arithmetic_rate(cuda: Cuda, device: ctypes.c_int, budget_s: float = BUDGET_S) -> float:
    """FLOP per second."""
    count = ctypes.c_int()
    cuda.call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, device)
    blocks = max(count.value, 1) * _BLOCKS_PER_MULTIPROCESSOR
    function = _function(cuda)
    out = _allocate(cuda, 4 * blocks * _THREADS)
    rounds = ctypes.c_uint32(_ROUNDS)
    pointers = (ctypes.c_void_p * 2)(
        ctypes.cast(ctypes.byref(out), ctypes.c_void_p), ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p)
    )

    def launch() -> None:
        sizes = [ctypes.c_uint(size) for size in (blocks, 1, 1, _THREADS, 1, 1, 0)]
        cuda.call("cuLaunchKernel", function, *sizes, None, pointers, None)

    try:
        seconds = _best(cuda, launch, budget_s)
    finally:
        cuda.call("cuMemFree_v2", out)
    return 2.0 * _ACCUMULATORS * _UNROLLED * _ROUNDS * blocks * _THREADS / seconds


def _function(cuda: Cuda) -> ctypes.c_void_p:
    told = ""
    for version, target in _TARGETS:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            cuda.call("cuModuleLoadData", ctypes.byref(module), ptx(version, target).encode() + b"\0")
            cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"multiply_add")
        except NoRate as error:
            told = str(error)
            continue
        return function
    raise NoRate(f"the driver compiles no kernel: {told}")


def _best(cuda: Cuda, work: Callable[[], None], budget_s: float) -> float:
    """Least seconds of several tries; the first, which warms up, does not count."""
    work()
    cuda.call("cuCtxSynchronize")
    best = float("inf")
    end = time.perf_counter() + budget_s
    tries = 0
    while tries < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        cuda.call("cuCtxSynchronize")
        best = min(best, time.perf_counter() - begin)
        tries += 1
    return best


def main() -> int:
    try:
        told: dict[str, float | str] = dict(measure())
    except NoRate as error:
        told = {"error": str(error)}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
