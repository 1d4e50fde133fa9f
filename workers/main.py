"""`farm worker`: this node's agent as a process of its own."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType

from farm.errors import UserError
from farm.model.machines import Capabilities
from farm.settings import Settings
from farm.text import clean, duration
from workers.agent import HostCommand, start_agent

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5


def run_worker(
    settings: Settings,
    *,
    host_command: HostCommand | None = None,
    capabilities: Capabilities | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status.

    The first signal drains: no more work is taken, running attempts may finish for `drain_grace_s`, then
    they are handed back. The second kills and hands back at once. 0: ended as asked; 1: the agent failed;
    2: it could not start (such as: another agent uses the state directory), with the reason on standard
    error. host_command and capabilities are as for `start_agent`.
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
    has_drained = False
    while agent.is_alive and signals < 2:
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
