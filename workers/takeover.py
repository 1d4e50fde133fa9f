"""What an agent that starts finds of the one before it: renderers that go on, and attempts that were lost."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from farm.model.ids import AttemptId, NodeId
from farm.model.states import Outcome
from farm.text import plural
from farm.wire.messages import Finished, HostRun
from workers.hosts import Found, find_hosts
from workers.journal import Entry, Journal
from workers.processes import boot_id, kill_one, kill_tagged, start_time
from workers.spool import Spool

_LOG = logging.getLogger(__name__)
HOSTS = "hosts"
"""Below the state directory: where session hosts listen for the next agent."""


def take_over(hosts: Path, journal: Journal, spool: Spool, *, node_id: NodeId) -> list[Found]:
    """Find what an earlier agent left: hosts that still run, ends that it was not told, and the lost.

    hosts: the directory in which session hosts listen. Returns the hosts that are to be taken over.
    """
    ours = []
    hosts.mkdir(mode=0o700, exist_ok=True)
    found, mute = find_hosts(hosts)
    for pid in mute:
        kill_one(pid, start_time(pid))
    live = {a for a, e in journal.entries.items() if not e.has_ended and a not in spool.waiting}
    ends = {end.attempt_id: end for host in found for end in host.holds.ended if end.attempt_id in live}
    if ends:
        spool.add(ends.values())
        live -= ends.keys()
    for host in found:
        run = host.holds.run
        if run is not None and run.order.attempt_id in live and _is_the_one(journal, run, host):
            ours.append(host)
            live.remove(run.order.attempt_id)
            continue
        if run is not None:
            kill_one(host.pid, host.started)
        host.connection.close()
        host.address.unlink(missing_ok=True)
    _bury(journal, spool, live, node_id)
    return ours


def _is_the_one(journal: Journal, run: HostRun, host: Found) -> bool:
    """Whether the journal agrees that this process has the attempt (or was not told yet)."""
    entry = journal.entries[run.order.attempt_id]
    return entry.pid is None or (entry.pid, entry.started, entry.boot_id) == (
        host.pid,
        host.started,
        boot_id(),
    )


def _bury(journal: Journal, spool: Spool, lost: Collection[AttemptId], node_id: NodeId) -> None:
    """End what is left of these attempts, and report them as lost."""
    this_boot = boot_id()
    is_here = False
    for attempt_id in lost:
        entry = journal.entries[attempt_id]
        is_here |= entry.boot_id in ("", this_boot)
        if entry.pid is not None and entry.boot_id == this_boot:
            kill_one(entry.pid, entry.started)
    if is_here and kill_tagged(lost):
        _LOG.error("a process of an earlier agent cannot be killed")

    def why(entry: Entry) -> str:
        if entry.boot_id not in ("", this_boot):
            return f"{node_id} was rebooted"
        if entry.pid is None:
            # Which process has it is noted with its start: it may have run for a moment.
            return f"handed back by {node_id}: its agent was restarted before it had noted a start"
        return f"the agent on {node_id} was restarted; its renderers died with it"

    spool.add(Finished(attempt_id=a, outcome=Outcome.NODE_LOST, reason=why(journal.entries[a])) for a in lost)
    journal.ended({*lost, *(a for a in spool.waiting if not _has_ended(journal, a))})
    if lost:
        _LOG.warning("%s of an earlier agent reported as lost", plural(len(lost), "attempt"))


def _has_ended(journal: Journal, attempt_id: AttemptId) -> bool:
    entry = journal.entries.get(attempt_id)
    return entry is not None and entry.has_ended
