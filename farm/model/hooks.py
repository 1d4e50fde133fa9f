"""Hooks: what the farm does when a job is done, failed or stalls. Defined in its settings, chosen by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class HookEvent(StrEnum):
    DONE = "done"
    FAILED = "failed"
    STALLED = "stalled"
    """An attempt is taken to stall; told at most once an hour for a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One of `url`, `command` and `mail_to`, in the farm's settings."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    url: str = ""
    """POSTed to, JSON; https, and no private address unless `hook_hosts` names the host."""
    command: tuple[str, ...] = ()
    """A program and its arguments, run on the scheduler's machine without a shell; JSON on standard input."""
    mail_to: tuple[str, ...] = ()
    on: tuple[HookEvent, ...] = (HookEvent.DONE, HookEvent.FAILED)
    every_job: bool = False
    """Also for jobs that did not ask for it."""

    @property
    def kind(self) -> str:
        return "webhook" if self.url else "command" if self.command else "mail"
