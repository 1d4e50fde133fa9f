"""Agents as processes of their own, on RabbitMQ."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]


class Agents:
    """Starts agents of one node, and ends those that still run."""

    def __init__(self, broker_url: str, state_dir: Path) -> None:
        self.broker_url = broker_url
        self.state_dir = state_dir
        self.node_id = f"t-{uuid.uuid4().hex[:8]}"
        self.log = state_dir.parent / f"{self.node_id}.log"
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def broker(self) -> tuple[str, int]:
        """Host and port."""
        place = urlsplit(self.broker_url)
        assert place.hostname is not None
        assert place.port is not None
        return place.hostname, place.port

    def start(self, *arguments: str, port: int | None = None, **others: object) -> subprocess.Popen[bytes]:
        """`port`: of a proxy in front of the broker."""
        _, own_port = self.broker
        values = {
            "state_dir": self.state_dir,
            "node_name": self.node_id,
            "broker_url": self.broker_url.replace(f":{own_port}/", f":{port or own_port}/"),
            "heartbeat_s": 0.2,
            "kill_grace_s": 0.2,
            **others,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.workers.agent_program", *arguments],
                cwd=ROOT,
                env=kept | {f"FARM_{name.upper()}": str(value) for name, value in values.items()},
                stderr=log,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
