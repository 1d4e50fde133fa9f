"""The node agent: a Celery worker takes messages in, one supervisor decides, others do the slow things.

Threads, and what each owns:

- *celery*: the consuming connection. Hands messages to the supervisor's inbox.
- *supervisor*: the lifecycle, the session hosts and their pipes (one selector loop). Waits for nothing else.
- *scribe*: journal and spool. *sender*: the publishing connection.
- *gauges*: how busy CPU and disk are. *telemetry*: how the GPUs are, and what attempts use of them.
- *errands*: removing private directories, which may hang on a dead file server.

The supervisor (`workers.supervisor`) decides with `workers.lifecycle`, which is pure.
"""

from __future__ import annotations

import fcntl
import os
import sys
from functools import partial
from pathlib import Path
from typing import IO

from farm.errors import UserError
from farm.model.machines import Capabilities
from farm.settings import Settings
from workers import containment, events
from workers.lifecycle import KILL_MARGIN_S
from workers.supervisor import HostCommand, Supervisor


def start_agent(
    settings: Settings,
    *,
    host_command: HostCommand | None = None,
    capabilities: Capabilities | None = None,
) -> AgentHandle:
    """Start this node's agent in threads of this process, and return at once.

    capabilities: instead of looking at the machine (tests). Raises UserError when `settings.state_dir`
    cannot be used or another agent uses it.
    """
    return AgentHandle(settings, host_command=host_command, capabilities=capabilities)


class AgentHandle:
    """A running agent, for whoever started it. Methods may be called from any thread."""

    def __init__(
        self, settings: Settings, *, host_command: HostCommand | None, capabilities: Capabilities | None
    ) -> None:
        self._lock_file = _lock(settings.state_dir)
        self._supervisor = Supervisor(
            settings, host_command or partial(_contained_host, sys.executable), capabilities
        )
        self._grace_s = settings.drain_grace_s
        self._kill_s = settings.kill_grace_s + KILL_MARGIN_S
        self._supervisor.start()

    @property
    def is_alive(self) -> bool:
        return self._supervisor.is_alive

    def drain(self, grace_s: float | None = None) -> None:
        """Take no more work; running attempts may finish for `grace_s` (None: as set), then go back."""
        self._supervisor.post(
            events.DrainAsked(grace_s=self._grace_s if grace_s is None else max(grace_s, 0.0))
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a draining agent has nothing left to do, or the agent has failed; True when so."""
        return self._supervisor.idle.wait(timeout_s)

    def stop(self, timeout_s: float = 15.0) -> bool:
        """Hand back what still runs, tell the farm, end all threads. True when all went well in time."""
        self.drain(0.0)
        self.wait(min(timeout_s, self._kill_s + 2.0))
        is_over = self._supervisor.stop(timeout_s)
        self._lock_file.close()
        return is_over

    def leave(self, timeout_s: float = 15.0) -> bool:
        """End all threads and let renderers run on, for the agent that comes next. True when in time.

        They wait for it as long as the farm does: see `Lifecycle.fence_at`.
        """
        is_over = self._supervisor.stop(timeout_s, leaves_hosts=True)
        self._lock_file.close()
        return is_over


def _contained_host(python: str, address: Path) -> list[str]:
    return containment.host_command(python, address=address)


def _lock(state_dir: Path) -> IO[str]:
    """One agent for each state directory: two would answer for each other's attempts. Raises UserError."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "agent.lock").open("a+")
    except OSError as error:
        raise UserError(f"the state directory {state_dir} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        pid = lock.read().strip()
        lock.close()
        raise UserError(
            f"another agent (process {pid or 'unknown'}) runs on {state_dir}; "
            "stop it, or set another state_dir"
        ) from error
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
