"""The live view where there is no screen: one line for each change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from farm.control.views import JobView
from farm.live.cells import shown
from farm.live.panes import clock, eta, event_text, percent
from farm.live.render import connection, facts
from farm.live.snapshot import Snapshot
from farm.model.machines import Node
from farm.model.states import ENDED_JOBS
from farm.text import plural

MOST = 2_000
"""Characters of a line."""


def overview(snapshot: Snapshot) -> Iterator[str]:
    """The farm, every job that has not ended, every node."""
    yield _line("farm", ", ".join([*facts(snapshot), connection(snapshot)]))
    for job in snapshot.jobs:
        if job.job.state not in ENDED_JOBS:
            yield _job(job)
    for node in snapshot.nodes:
        yield _node(node)


def changes(old: Snapshot, new: Snapshot) -> Iterator[str]:
    """What `new` tells that `old` did not: the connection, events, jobs' progress, nodes' states."""
    if bool(old.lost_reason) != bool(new.lost_reason):
        yield _line("farm", "connected again" if not new.lost_reason else f"no answer: {new.lost_reason}")
    seen = max((event.id for event in old.events), default=0)
    for event in reversed(new.events):
        if event.id > seen:
            yield _line("event", f"{clock(event.at, new.utc_offset_s)} {event.kind}: {event_text(event)}")
    jobs = {line.job.id: line for line in old.jobs}
    for line in new.jobs:
        before = jobs.get(line.job.id)
        if before is None or _stand(before) != _stand(line):
            yield _job(line)
    nodes = {node.id: node for node in old.nodes}
    for node in new.nodes:
        known = nodes.get(node.id)
        if known is None or (known.state, known.reason) != (node.state, node.reason):
            yield _node(node)


def _stand(line: JobView) -> tuple[object, ...]:
    counts = line.counts
    return line.job.state, counts.done, counts.failed, counts.cancelled, counts.held, line.waiting


def _job(line: JobView) -> str:
    job, counts = line.job, line.counts
    parts = [
        f"{job.state}, {counts.done} of {plural(counts.total, 'task')} done ({percent(line.progress)})",
        f"{counts.live} running",
        *([f"{counts.failed} failed"] if counts.failed else []),
        *([f"{counts.held} held"] if counts.held else []),
        *([f"ETA {eta(line)}"] if line.eta_s and job.state not in ENDED_JOBS else []),
        *([line.waiting or job.reason] if line.waiting or job.reason else []),
    ]
    return _line(f"job {job.id} {job.name}", ", ".join(parts))


def _node(node: Node) -> str:
    parts = [str(node.state), *([node.reason] if node.reason else []), *node.running]
    return _line(f"node {node.id}", ", ".join(parts))


def _line(what: str, text: str) -> str:
    return shown(f"{what}: {text}", MOST)
