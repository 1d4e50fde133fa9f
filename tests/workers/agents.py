"""Agents for tests: a machine with two slots, and a session host that plays."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings
from workers import containment

MACHINE = Capabilities(
    cpus=2,
    memory_mib=1000,
    devices=(Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=2),),
)
FAKE_HOST = str(Path(__file__).with_name("fake_host.py"))


def fake_host_command(_address: Path, kind: containment.Containment | None = None) -> list[str]:
    """It does not listen there: such a host ends with its agent."""
    *prefix, _, _ = containment.host_command(sys.executable, kind)
    return [*prefix, FAKE_HOST]


def settings_in(state_dir: Path, **others: Any) -> Settings:
    return Settings(
        **{
            "state_dir": state_dir,
            "node_name": f"t-{uuid.uuid4().hex[:8]}",
            "heartbeat_s": 0.2,
            "kill_grace_s": 0.2,
            **others,
        }
    )
