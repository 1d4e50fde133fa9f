"""Fake NVIDIA boards: a driver library built with gcc, and the fixture files that it answers from.

Board figures are those that NVML reports (public nvidia-smi and deviceQuery dumps, else data sheets): the
memory clock is half of the data rate for every memory type, the SM clock is the highest of the silicon.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fake_nvml") / "fake_nvml.c"

# name, brand, architecture, cc, cores, SM MHz, memory MHz, bus bits, VRAM MiB, reserved MiB, W, PCIe
_BOARDS: dict[str, tuple[Any, ...]] = {
    "gtx1080ti": ("NVIDIA GeForce GTX 1080 Ti", 5, 4, "6.1", 3584, 1911, 5505, 352, 11264, 90, 250, 3),
    "rtx3060ti": ("NVIDIA GeForce RTX 3060 Ti", 5, 7, "8.6", 4864, 2100, 7001, 256, 8192, 221, 200, 4),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 5, 7, "8.6", 10496, 2100, 9751, 384, 24576, 319, 350, 4),
    "rtx4070": ("NVIDIA GeForce RTX 4070", 5, 8, "8.9", 5888, 3105, 10501, 192, 12282, 310, 200, 4),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 5, 8, "8.9", 16384, 3105, 10501, 384, 24564, 450, 450, 4),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 5, 10, "12.0", 21760, 3090, 14001, 512, 32607, 497, 575, 5),
    "t4": ("Tesla T4", 2, 6, "7.5", 2560, 1590, 5001, 256, 15360, 450, 70, 3),
    "p40": ("Tesla P40", 2, 4, "6.1", 3840, 1531, 3615, 384, 23040, 150, 250, 3),
    "v100": ("Tesla V100-SXM2-32GB", 2, 5, "7.0", 5120, 1530, 877, 4096, 32768, 280, 300, 3),
    "l4": ("NVIDIA L4", 14, 8, "8.9", 7424, 2040, 6251, 192, 23034, 480, 72, 4),
    "l40s": ("NVIDIA L40S", 14, 8, "8.9", 18176, 2520, 9001, 384, 46068, 600, 350, 4),
    "a100": ("NVIDIA A100-SXM4-80GB", 14, 7, "8.0", 6912, 1410, 1593, 5120, 81920, 600, 400, 4),
    "h100": ("NVIDIA H100 80GB HBM3", 14, 9, "9.0", 16896, 1980, 2619, 5120, 81559, 560, 700, 5),
    "h200": ("NVIDIA H200", 14, 9, "9.0", 16896, 1980, 3201, 6144, 143771, 660, 700, 5),
    "b200": ("NVIDIA B200", 14, 10, "10.0", 18944, 1965, 3996, 7680, 183359, 700, 1000, 5),
}
_SLICES = {  # slices, multiprocessors, MiB
    "a100": {"1g.10gb": (1, 14, 9728), "2g.20gb": (2, 28, 19968), "3g.40gb": (4, 42, 40192)},
    "h100": {"1g.10gb": (1, 16, 9984), "2g.20gb": (2, 32, 20096), "3g.40gb": (4, 60, 40448)},
}

Fixture = dict[str, Any]
"""Nested: {"gpu": {0: {"name": ...}}, "driver_version": ...}. None takes a key away."""


def board(kind: str, index: int = 0, node: str = "n", *, mig: tuple[str, ...] = (), **other: Any) -> Fixture:
    """One GPU of a fixture, idle."""
    name, brand, arch, cc, cores, sm, mem, bus, vram, reserved, watts, pcie = _BOARDS[kind]
    is_data_centre = brand in (2, 14)
    has_gpm = arch >= 9 and is_data_centre
    gpu: Fixture = {
        "name": name,
        "uuid": f"GPU-{node}-{index:04d}",
        "pci": f"00000000:{0x17 + index:02X}:00.0",
        "brand": brand,
        "architecture": arch,
        "cc": cc,
        "cores": cores,
        "sm_mhz": sm,
        "memory_mhz": mem,
        "bus_bits": bus,
        "memory_mib": vram,
        "reserved_mib": reserved,
        "used_mib": 1,
        "sm_mhz_now": 210,
        "memory_mhz_now": mem,
        "busy": 0,
        "memory_busy": 0,
        "temperature": 35,
        "power_mw": watts * 100,
        "power_default_mw": watts * 1000,
        "power_limit_mw": watts * 1000,
        "energy_mj": f"1000000+{watts * 100}/s" if arch >= 5 else None,
        "reasons": 1,
        "compute_mode": 0,
        "pcie_generation": pcie,
        "pcie_width": 16,
        "pcie_generation_now": 1,
        "pcie_width_now": 16,
        "virtualization": 0,
        "event_types": 8 | 16,
        "mig_mode": 0 if is_data_centre and arch >= 7 else None,
        "mig_most": 7 if is_data_centre and arch >= 7 else None,
        "gpm": 1 if has_gpm else None,
    }
    if mig:
        gpu |= {"mig_mode": 1, "mig": {}}
        for at, profile in enumerate(mig):
            slices, multiprocessors, mib = _SLICES[kind][profile]
            gpu["mig"][at] = {
                "name": f"{name} MIG {profile}",
                "uuid": f"MIG-{node}-{index:04d}-{at}",
                "slices": slices,
                "sm": multiprocessors,
                "memory_mib": mib,
                "reserved_mib": 0,
                "used_mib": 12,
            }
    return gpu | other


def node(*boards: Fixture, driver: str = "580.95.05", **other: Any) -> Fixture:
    return {
        "driver_version": driver,
        "cuda_version": 13000,
        "count": len(boards),
        "gpu": dict(enumerate(boards)),
        **other,
    }


def busy(gpu: Fixture, share: int, memory_share: int, *, used_mib: int | None = None) -> Fixture:
    """The changes that make an idle board busy: utilisation and memory controller in percent."""
    watts = gpu["power_default_mw"] // 1000
    power_mw = watts * (100 + 8 * share)
    return {
        "busy": share,
        "memory_busy": memory_share,
        "sm_mhz_now": int(gpu["sm_mhz"] * 0.9),
        "power_mw": power_mw,
        "energy_mj": f"2000000+{power_mw}/s" if gpu.get("energy_mj") else None,
        "temperature": 66,
        "reasons": 4,
        "pcie_generation_now": gpu["pcie_generation"],
        **({} if used_mib is None else {"used_mib": used_mib}),
    }


def as_text(fixture: Fixture, prefix: str = "") -> str:
    lines = []
    for key, value in fixture.items():
        if isinstance(value, dict):
            lines.append(as_text(value, f"{prefix}{key}."))
        elif value is not None:
            lines.append(f"{prefix}{key} = {value}\n")
    return "".join(lines)


@dataclass
class FakeDriver:
    """A node's driver: its fixture file, and the environment of a process that is to see it."""

    library: Path
    path: Path
    fixture: Fixture = field(default_factory=node)

    def __post_init__(self) -> None:
        self._write(as_text(self.fixture))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_FIXTURE": str(self.path)}

    def change(self, index: int, **values: Any) -> None:
        """Change a GPU; a process that uses the driver sees it with its next question."""
        self.fixture["gpu"][index] |= values
        self._write(as_text(self.fixture))

    def change_node(self, **values: Any) -> None:
        self.fixture |= values
        self._write(as_text(self.fixture))

    def xid(self, index: int, code: int) -> None:
        """Tell an Xid of that GPU, as the driver's event."""
        told = self.fixture.setdefault("event", {})
        told[len(told)] = {"gpu": index, "xid": code}
        self._write(as_text(self.fixture))

    def write(self, text: str) -> None:
        """A fixture as it is, well formed or not."""
        self._write(text)

    def _write(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text, errors="surrogateescape")
        os.replace(fresh, self.path)


class Reader:
    """A process that looks at a driver with our code. Keep one for many fixtures: starting is dear."""

    def __init__(self, driver: FakeDriver, *, python_path: str = "") -> None:
        path = os.pathsep.join(filter(None, (python_path, os.getcwd())))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.reader"],
            env={**os.environ, **driver.environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.driver = driver

    def ask(self, word: str) -> Any:
        """What the process answers; `notes` and `node_fault` are kept."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader died with {self._process.wait(10)}"
        told = json.loads(line)
        self.notes, self.node_fault = told["notes"], told["node_fault"]
        return told["answer"]

    def look(self, fixture: Fixture) -> list[Any]:
        """The devices of a node as a fresh provider finds them."""
        self.driver.fixture = fixture
        self.driver.change_node()
        self.ask("new")
        return list(self.ask("devices"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def build(folder: Path, *flags: str) -> Path:
    """Compile the library; returns its path. Skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [
            compiler,
            *("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
            *flags,
            f"-Wl,-soname,{library.name}",
            *("-o", str(library), str(SOURCE), "-lm", "-lpthread"),
        ],
        check=True,
    )
    return library
