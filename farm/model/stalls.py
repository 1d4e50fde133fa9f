"""What a running attempt is seen to do, what that is taken for, and what is done about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from farm.model.ids import AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What all processes of a running attempt have been doing, as their node saw it.

    Seconds are counted by the node's own clock: `cpu_idle_s` is for how long they have used (next to) no CPU.
    None: the node cannot say.
    """

    attempt_id: AttemptId
    age_s: float
    """Since the renderer was started."""
    processes: int = 0
    states: dict[str, int] = field(default_factory=dict, hash=False)
    """Processes by the kernel's letter: R runs, S sleeps, D waits for a disk, T is stopped, Z is dead."""
    command: str = ""
    """The main process's name."""
    cpu_s: float = 0.0
    """CPU time so far."""
    cores: float = 0.0
    """CPU time a second, over the last half minute."""
    io_bytes_s: float = 0.0
    """Read and written, over the last half minute; pipes and caches count."""
    memory_mib: int = 0
    memory_growth_mib: int = 0
    """Over the last half minute."""
    swap_mib: int = 0
    page_ins_s: float = 0.0
    """Pages that had to be read from disk, a second, over the last half minute."""
    cpu_idle_s: float = 0.0
    io_idle_s: float = 0.0
    gpu_idle_s: float | None = None
    """None on the CPU, and where the device cannot say whether it is busy."""
    on_gpu: bool = False
    silent_s: float = 0.0
    """Since its last output, or its start."""
    last_line: str = ""
    progress: float | None = None
    """0 to 1."""
    progress_idle_s: float | None = None
    is_output_closed: bool = False
    """It can print nothing any more."""
    stopped_s: float = 0.0
    """For which one of its processes has been stopped by a signal, while none did anything."""
    blocked_s: float = 0.0
    """For which one of its threads has been in one and the same wait for a disk or a file server."""
    blocked_on: str = ""
    """Who, and the kernel function that it is in: "blender in rpc_wait_bit_killable"."""
    swapping_s: float = 0.0
    """For which it has had memory in swap and pages to be read from disk without a break."""
    files_done_s: float | None = None
    """For which every file that is expected of it has been there, not empty and unchanged; None: not yet."""
    files_stuck_s: float = 0.0
    """For which a look at its output directory has not come back."""
    licence: str = ""
    """What it said last, where that is that it waits for a licence."""

    @property
    def idle_s(self) -> float:
        """For how long neither CPU, nor I/O, nor a GPU that can say so has been used."""
        known = [self.cpu_idle_s, self.io_idle_s]
        if self.gpu_idle_s is not None:
            known.append(self.gpu_idle_s)
        return min(known)


class StallKind(StrEnum):
    """What an attempt is taken for. The first two are no stalls."""

    WORKING = "working"
    SILENT = "silent"
    """It works, and has said nothing for a while."""
    SLOW = "slow"
    """It works, and takes much longer than this device should."""
    SWAPPING = "swapping"
    LICENCE = "licence"
    """It waits for a licence."""
    NOT_EXITING = "not-exiting"
    """Its files are there, and it does nothing any more."""
    STOPPED = "stopped"
    """By a signal (SIGSTOP)."""
    WEDGED = "wedged"
    """It waits for a disk or a file server that does not answer."""
    HUNG = "hung"
    """No CPU, no GPU, no I/O, no output."""


NO_STALLS = frozenset({StallKind.WORKING, StallKind.SILENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: StallKind
    text: str = ""
    """The evidence, one line."""

    @property
    def is_stall(self) -> bool:
        return self.kind not in NO_STALLS


class StallPolicy(StrEnum):
    """What the farm does about a stalled attempt."""

    WARN = "warn"
    """Say so, and leave it alone."""
    COPY = "copy"
    """Start a second attempt elsewhere; the first whole result wins. Staged output only: else as `warn`."""
    MIGRATE = "migrate"
    """End it and run it elsewhere; where it may yet end well, a second copy first."""
    KILL = "kill"
    """End it; that spends a retry of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What an attempt was last taken for, kept with it."""

    kind: StallKind
    text: str = ""
    since: float | None = None
    """On the database's clock."""
    action: str = ""
    """What the farm did about it, one line."""

    @property
    def is_stall(self) -> bool:
        return self.kind not in NO_STALLS

    @property
    def told(self) -> str:
        """For people, one line, raw."""
        return f"{self.kind}: {self.text}" + (f"; {self.action}" if self.action else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCosts:
    """What the moving of attempts has cost and saved."""

    moved: int = 0
    """Attempts that the farm ended so that they run elsewhere."""
    killed: int = 0
    """Attempts that were ended by the policy "kill", for a retry of their tasks'."""
    copies: int = 0
    """Second copies of stalled attempts."""
    speculations: int = 0
    """Second copies at a job's end."""
    copies_won: int = 0
    """Copies of either kind whose result was taken."""
    lost_s: float = 0.0
    """Run time of what was moved or killed, and of copies that did not win."""
    saved_s: float = 0.0
    """How much earlier than expected tasks ended whose copy won; those that hung for ever are not in it."""


class Origin(StrEnum):
    """Why an attempt was made."""

    MATCH = "match"
    """It was the task's turn."""
    COPY = "copy"
    """A second copy of a stalled one."""
    SPECULATION = "speculation"
    """A second copy at the job's end, on an idle device that is expected to be faster."""
