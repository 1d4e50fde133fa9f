"""How an attempt's processes ended, and what that means. Decisions over plain data."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from farm.model.states import Outcome
from farm.text import clean, duration

MAX_WARNINGS = 20
_REASON_LIMIT = 300
_SHELL_SIGNAL_BASE = 128
_COMMAND_NOT_FOUND = 127
_TELLING = ("error", "fatal", "cannot", "can't", "failed", "not found", "unable", "abort")

STORAGE_SIGNS = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Stale file handle",
    "Input/output error",
)
MEMORY_SIGNS = ("MemoryError", "bad_alloc", "Out of memory", "out of memory", "Cannot allocate memory")


@dataclass(slots=True, kw_only=True)
class Readings:
    """What the output has taught so far. Filled while the attempt runs."""

    fraction: float | None = None
    message: str = ""
    warnings: list[str] = field(default_factory=list)
    fatal: str = ""
    is_final: bool = False
    outcome: Outcome | None = None
    width: int | None = None
    height: int | None = None
    rendering_since: float | None = None
    fail_message: str = ""
    """From `openjd_fail:`; it fails the attempt even when the exit status is 0."""
    storage_sign: str = ""
    memory_sign: str = ""
    output_at: float | None = None
    """Of the last output, as all times here on the monotonic clock."""
    progress_at: float | None = None
    """When `fraction` last changed."""
    last_line: str = ""
    licence: str = ""
    """The last line, where it says that the renderer waits for a licence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the processes of an attempt ended."""

    command: str
    """For people: "blender"."""
    exit_code: int | None = None
    """Negative: killed by that signal. None: it never ran, or nobody knows."""
    stop: tuple[Outcome, str] | None = None
    """The agent asked for it: class and reason."""
    refusal: tuple[Outcome, str] | None = None
    """It could not be started, or a part of the session failed: class and reason."""
    is_final: bool = False
    """With `refusal`: trying again cannot help."""
    timeout_s: float | None = None
    """It was stopped because it ran longer than this."""
    oom_kills: int | None = None
    """Kills by the kernel's out-of-memory killer on this machine meanwhile; None: cannot say."""
    peak_memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    outcome: Outcome
    reason: str = ""
    """One line."""
    is_final: bool = False
    """Trying again cannot help."""


def conclude(ending: Ending, readings: Readings, last_lines: list[str]) -> Conclusion:
    """What an attempt's end means, before its files are looked at."""
    outcome, reason = _conclude(ending, readings, last_lines)
    is_own = ending.stop is None and ending.timeout_s is None
    is_final = is_own and (ending.is_final if ending.refusal is not None else readings.is_final)
    return Conclusion(outcome=outcome, reason=reason, is_final=is_final)


def one_line(text: str) -> str:
    """`text` as a reason: one line, safe to send and to show."""
    return clean(" ".join(text.split()), limit=_REASON_LIMIT, one_line=True)


def _conclude(ending: Ending, readings: Readings, last_lines: list[str]) -> tuple[Outcome, str]:
    if ending.stop is not None:
        return ending.stop
    if ending.timeout_s is not None:
        return Outcome.STALLED, f"ran longer than {duration(ending.timeout_s)} and was stopped"
    if ending.refusal is not None:
        return ending.refusal
    if readings.fatal:
        return readings.outcome or _sign(readings) or Outcome.JOB_ERROR, readings.fatal
    if ending.exit_code == 0:
        if readings.fail_message:
            return Outcome.JOB_ERROR, readings.fail_message
        return Outcome.SUCCEEDED, ""
    return _failed(ending, readings, last_lines)


def _failed(ending: Ending, readings: Readings, last_lines: list[str]) -> tuple[Outcome, str]:
    how = _how(ending)
    detail = readings.fail_message or readings.storage_sign or readings.memory_sign or _telling(last_lines)
    reason = f"{how}: {detail}" if detail else how
    outcome = readings.outcome or _sign(readings)
    if outcome is None and _signal(ending.exit_code) == signal.SIGKILL:
        if ending.oom_kills:
            return Outcome.OUT_OF_MEMORY, f"{ending.command} was killed by the kernel: out of memory"
        outcome = Outcome.OUT_OF_MEMORY if ending.oom_kills is None else Outcome.JOB_ERROR
        reason = f"{how} (out of memory?)"
    return outcome or Outcome.JOB_ERROR, reason


def _how(ending: Ending) -> str:
    number = _signal(ending.exit_code)
    if number is not None:
        return f"{ending.command} was killed by {number.name}"
    if ending.exit_code is None:
        return f"{ending.command} ended, nobody knows how"
    note = " (command not found)" if ending.exit_code == _COMMAND_NOT_FOUND else ""
    return f"{ending.command} exited with status {ending.exit_code}{note}"


def _signal(exit_code: int | None) -> signal.Signals | None:
    """The deadly signal, told by the kernel (-9) or by a shell (137)."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL_BASE
    is_deadly = exit_code < 0 or number in (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGTERM,
    )
    return signal.Signals(number) if is_deadly and number in signal.valid_signals() else None


def _sign(readings: Readings) -> Outcome | None:
    if readings.storage_sign:
        return Outcome.STORAGE
    return Outcome.OUT_OF_MEMORY if readings.memory_sign else None


def _telling(last_lines: list[str]) -> str:
    """The line that most likely says why: the last one that sounds like an error, else the last one."""
    lines = [line.strip() for line in last_lines if line.strip()]
    for line in reversed(lines):
        if any(word in line.lower() for word in _TELLING):
            return line
    return lines[-1] if lines else ""
