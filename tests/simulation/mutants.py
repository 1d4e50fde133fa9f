"""Known bugs, planted at run time: proof that the simulation would find them.

A mutant changes the source of one or more functions, each in one place. When that place is not there any
more the mutant no longer fits the code, and says so: it is then to be planted anew, not dropped.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation.farm import Result, run_seed


@dataclass(frozen=True, slots=True)
class Cut:
    """In the function `where` ("module:name" or "module:Class.name"), `old` becomes `new`."""

    where: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    cuts: tuple[Cut, ...]
    profile: str = "storm"
    """Which faults bring it out soonest."""
    seeds: int = 40
    """Within so many it must be found."""
    said: str = ""
    """What the violation's text holds."""


_DISPATCHING = "farm.store.dispatching"
_LEASES = "farm.store.leases"
_SETTLING = "farm.store.settling"
_LIFECYCLE = "workers.lifecycle:Lifecycle"

MUTANTS: tuple[Mutant, ...] = (
    # the leader
    Mutant(
        name="the leader's epoch is not checked",
        cuts=(
            Cut(
                "farm.store.leader:leading",
                'if db.scalar(_lead_query(), {"of_holder": lead.holder, "of_epoch": lead.epoch}) is None:',
                "if False:",
            ),
        ),
        profile="scheduler",
        said="I7",
    ),
    Mutant(
        name="a leader writes on when its own lease is over",
        cuts=(Cut("farm.store.leader:_lead_query", ", _T.c.until > db_now())", ")"),),
        profile="scheduler",
        said="I7",
    ),
    # leases
    Mutant(
        name="the lease of a dead attempt is renewed",
        cuts=(
            Cut(
                f"{_LEASES}:renew",
                'if known.get(a) in ("assigned", "running")]',
                "if a in known]",
            ),
        ),
        said="I8",
    ),
    Mutant(
        name="a lease ends before its time",
        cuts=(
            Cut(
                f"{_LEASES}:_ran_out",
                "_ATTEMPT.c.lease_until < db_now()",
                "_ATTEMPT.c.lease_until < db_now() + 26",
            ),
            Cut(
                f"{_LEASES}:_expired_query",
                "_ATTEMPT.c.lease_until < db_now()",
                "_ATTEMPT.c.lease_until < db_now() + 26",
            ),
            Cut(
                f"{_SETTLING}:expire_leases",
                "_ATTEMPT.c.lease_until < db_now()",
                "_ATTEMPT.c.lease_until < db_now() + 26",
            ),
        ),
        profile="nodes",
        said="I8",
    ),
    Mutant(
        name="an exclusive task of a silent node is given out again",
        cuts=(Cut("farm.flow.report:expire", "if isolation is Isolation.EXCLUSIVE:", "if False:"),),
        said="exclusive",
        profile="exclusive",
        seeds=60,
    ),
    Mutant(
        name="an old heartbeat is taken for news",
        cuts=(Cut("farm.store.nodes:heard", 'elif beat.sequence <= row["sequence"]:', "elif False:"),),
        profile="exclusive",
        seeds=120,
    ),
    # reports
    Mutant(
        name="a second end of an attempt counts",
        cuts=(
            Cut(
                "farm.flow.report:settle",
                "if attempt.state not in LIVE_ATTEMPTS and attempt.state is not AttemptState.LOST:",
                "if False:",
            ),
        ),
        profile="messages",
    ),
    Mutant(
        name="a lost node spends the task's retries",
        cuts=(
            Cut(
                "farm.flow.report:_settle_failure",
                "failures = 1 if outcome in SPENDS_RETRY else 0",
                "failures = 1 if outcome in SPENDS_RETRY or outcome is Outcome.NODE_LOST else 0",
            ),
        ),
        profile="nodes",
        said="I12",
    ),
    Mutant(
        name="a start counts whatever became of the attempt",
        cuts=(Cut(f"{_SETTLING}:_starting", '            _ATTEMPT.c.state == "assigned",\n', ""),),
        profile="messages",
        said="I4",
    ),
    Mutant(
        name="messages are acknowledged unread, and ends are sent once",
        cuts=(
            Cut(
                "farm.control.scheduler:Scheduler._round",
                "try:\n        settled = self._settle(heard)",
                "self._intake.acknowledge()\n    try:\n        settled = self._settle(heard)",
            ),
            Cut("workers.sender:Sender._take", "if due <= now and attempt_id not in fresh:", "if False:"),
        ),
        profile="scheduler",
        said="I3",
    ),
    # dispatch
    Mutant(
        name="the outbox row of a launch is forgotten",
        cuts=(
            Cut(
                f"{_DISPATCHING}:lease",
                "outbox.owe_launches(db, launches)",
                "pass",
            ),
        ),
        profile="calm",
        said="I13",
    ),
    Mutant(
        name="tasks that are no longer ready are claimed",
        cuts=(
            Cut(
                f"{_DISPATCHING}:_claim_query",
                '            _TASK.c.state == "ready",\n',
                '            _TASK.c.state.in_(["ready", "running"]),\n',
            ),
            Cut(
                f"{_DISPATCHING}:_claim_query",
                '.where(_TASK.c.id.in_(wanted), _TASK.c.state == "ready")',
                ".where(_TASK.c.id.in_(wanted))",
            ),
        ),
        profile="calm",
    ),
    Mutant(
        name="a step opens when one task before it is done",
        cuts=(
            Cut(
                "farm.flow.report:advance",
                "elif all(n.counts.done == n.counts.total for n in needs):",
                "elif all(n.counts.done for n in needs):",
            ),
        ),
        profile="calm",
        said="I15",
    ),
    Mutant(
        name="a step's counts do not move along",
        cuts=(
            Cut(
                "farm.store.moves:move_each",
                'tally[change["step_id"], change["old"], change["new"]] += 1',
                "pass",
            ),
        ),
        profile="calm",
    ),
    Mutant(
        name="a submit with a known key makes another job",
        cuts=(Cut("farm.store.submitting:submit", "if known is not None:", "if False:"),),
        seeds=60,
    ),
    Mutant(
        name="a limit is not looked at when tasks are matched, nor where they start",
        cuts=(Cut("farm.flow.limits:Ledger.how_many", "if limit is None:", "if True:"),),
        profile="shared",
        said="I16",
    ),
    # stalls
    Mutant(
        name="an exclusive task gets a second copy",
        cuts=(
            Cut(
                "farm.control.stallwatch:_can_be_copied",
                "        and seen.isolation is not Isolation.EXCLUSIVE\n",
                "",
            ),
        ),
        profile="stalls",
        seeds=120,
    ),
    # the node
    Mutant(
        name="a doubled launch starts a second renderer",
        cuts=(Cut(f"{_LIFECYCLE}._launch", "if known is not None:", "if False:"),),
        profile="messages",
    ),
    Mutant(
        name="an exclusive launch begins without the farm's word",
        cuts=(
            Cut(
                f"{_LIFECYCLE}._launch",
                "needs_confirming=since is None,",
                "needs_confirming=False,",
            ),
        ),
        profile="exclusive",
    ),
    Mutant(
        name="an exclusive lease counts from a heartbeat after its assignment",
        cuts=(Cut("workers.heartbeats:Heartbeats.assigned_since", "if heard <= assigned_at", "if heard"),),
        profile="exclusive",
    ),
    Mutant(
        name="a node takes more than its slots",
        cuts=(
            Cut(
                f"{_LIFECYCLE}._fill",
                "all(self._busy.get(part, 0) < self.rules.slots.get(part, 0) for part in parts)",
                "parts",
            ),
        ),
        said="I11",
        profile="short",
    ),
    Mutant(
        name="a node never fences itself",
        cuts=(
            Cut(f"{_LIFECYCLE}.fence_at", "return held.renewed_at + self.rules.fence_s", "return now + 1e6"),
            Cut(
                f"{_LIFECYCLE}._tick",
                "if held.is_exclusive and now - held.renewed_at >= self.rules.fence_s:",
                "if False:",
            ),
        ),
        said="G6",
        profile="fences",
    ),
    Mutant(
        name="a node measures by its wall clock",
        cuts=(
            Cut(
                "tests.simulation.node:Machine.boottime",
                "return self.kernel.now + self._clock_error_s",
                "return self.wall()",
            ),
        ),
        said="",
        profile="clocks",
        seeds=40,
    ),
    Mutant(
        name="a restarted agent does not read its journal",
        cuts=(Cut("workers.journal:Journal.load", "self._take(record)", "pass"),),
        profile="restarts",
        seeds=40,
    ),
    Mutant(
        name="ends are not spooled",
        cuts=(Cut("workers.scribe:Scribe._write", "self._spool.add(ends)", "pass"),),
        seeds=80,
    ),
    Mutant(
        name="the broker's confirm is taken for the farm's word",
        cuts=(
            Cut(
                "workers.sender:Sender._hear",
                "        if self._out.popleft().reports:\n",
                "        self.accepted(i.attempt_id for i in self._out[0].reports)\n"
                "        if self._out.popleft().reports:\n",
            ),
        ),
        seeds=120,
    ),
    # files
    Mutant(
        name="the private directories of an ended job stay",
        cuts=(Cut("farm.store.advancing:_owe_tidying", "if not job.output_directories:", "if True:"),),
        profile="calm",
        said="I10",
    ),
    Mutant(
        name="a file is told by its size alone",
        cuts=(Cut("workers.staging:_is_this", "and inode in (None, status.st_ino)", ""),),
        said="I2",
        profile="requeues",
    ),
)


class NoLongerFits(AssertionError):
    """The code that a mutant changes has changed."""


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The code with this bug in it. Raises NoLongerFits."""
    changed: list[tuple[Any, Any]] = []
    try:
        for cut in mutant.cuts:
            function = _function(cut.where)
            changed.append((function, function.__code__))
            function.__code__ = _changed(function, cut, mutant.name)
        _forget_statements(mutant)
        yield
    finally:
        for function, code in reversed(changed):
            function.__code__ = code
        _forget_statements(mutant)


def _forget_statements(mutant: Mutant) -> None:
    """Statements are built once: they have to be built anew with the bug, and without it."""
    for cut in mutant.cuts:
        forget = getattr(_found(cut.where), "cache_clear", None)
        if forget is not None:
            forget()


_sources: dict[Any, str] = {}


def _found(where: str) -> Any:
    module_name, _, path = where.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _function(where: str) -> Any:
    """Of a context manager, the generator inside: its users have imported the wrapper."""
    return inspect.unwrap(_found(where))


def _changed(function: Any, cut: Cut, name: str) -> Any:
    """The function's code with the cut made; cuts of one function follow each other."""
    key = (function, function.__code__)
    source = _sources.get(key) or textwrap.dedent(inspect.getsource(function))
    if source.count(cut.old) != 1:
        raise NoLongerFits(f"mutant {name!r}: {cut.where} has {cut.old!r} {source.count(cut.old)} times")
    source = source.replace(cut.old, cut.new)
    scope: dict[str, Any] = {}
    lines = source.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith("def "))
    exec(
        compile("from __future__ import annotations\n" + "".join(lines[first:]), cut.where, "exec"),
        function.__globals__ | {},
        scope,
    )
    code = next(iter(v for k, v in scope.items() if k != "annotations")).__code__
    _sources[(function, code)] = source
    return code


def hunt(mutant: Mutant, *, first: int = 0) -> Result | None:
    """Plant it and go through its seeds; the first violation, or None: it survived."""
    with planted(mutant):
        for seed in range(first, first + mutant.seeds):
            result = run_seed(seed, profile=mutant.profile)
            if result.violation and mutant.said in result.violation:
                return result
    return None
