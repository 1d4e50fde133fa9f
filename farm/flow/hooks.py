"""Which hooks an event calls, what they are told, and which addresses a webhook may reach."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import urlsplit

from farm.errors import UserError
from farm.model.events import EventKind
from farm.model.hooks import Hook, HookEvent
from farm.model.work import Job
from farm.text import clean

EVENTS: Final[Mapping[EventKind, HookEvent]] = {
    EventKind.JOB_DONE: HookEvent.DONE,
    EventKind.JOB_FAILED: HookEvent.FAILED,
    EventKind.ATTEMPT_STALLED: HookEvent.STALLED,
}
MAX_TRIES: Final = 8
FIRST_DELAY_S: Final = 10.0
LONGEST_DELAY_S: Final = 1800.0
_ADDRESS: Final = re.compile(r"[^@\s<>,;:\"]+@[^@\s<>,;:\"]+")


def called(event: HookEvent, asked_for: Collection[str], hooks: Mapping[str, Hook]) -> list[str]:
    """Names of the hooks that the event calls, for a job that asked for some."""
    return [
        name for name, hook in hooks.items() if event in hook.on and (hook.every_job or name in asked_for)
    ]


def check_hooks(names: Collection[str], hooks: Mapping[str, Hook]) -> None:
    """Raise UserError for a hook that the farm does not have; it names the nearest."""
    for name in names:
        if name not in hooks:
            near = get_close_matches(name, hooks, n=1)
            known = f"there are {', '.join(hooks)}" if hooks else "this farm has none (setting hooks)"
            hint = f"did you mean {near[0]}?" if near else known
            raise UserError(f"there is no hook '{clean(name, limit=60, one_line=True)}'; {hint}")


def retry_delay_s(tries: int) -> float | None:
    """How long to wait after so many tries have failed; None: give up."""
    return None if tries >= MAX_TRIES else min(FIRST_DELAY_S * 2 ** (tries - 1), LONGEST_DELAY_S)


def payload(event: HookEvent, job: Job, *, number: int, at: float, text: str) -> dict[str, Any]:
    """What a hook is told. `number` names the call: one that is repeated has the same."""
    return {
        "id": number,
        "event": str(event),
        "at": at,
        "text": clean(text, limit=2_000, one_line=True),
        "job": {
            "id": job.id,
            "name": clean(job.name, limit=255, one_line=True),
            "user": clean(job.settings.user, limit=255, one_line=True),
            "state": str(job.state),
            "reason": clean(job.reason, limit=2_000, one_line=True),
            "tasks": job.counts.total,
            "done": job.counts.done,
            "failed": job.counts.failed,
            "output_directories": [
                clean(path, limit=4_096, one_line=True) for path in job.output_directories
            ],
        },
    }


def subject(told: Mapping[str, Any]) -> str:
    """Of a mail: "Ridgeline: job 12 shot_010 failed". One line."""
    job = told["job"]
    return f"Ridgeline: job {job['id']} {job['name']} {told['event']}"


def check_hook(name: str, hook: Hook, *, hosts: Collection[str]) -> None:
    """Raise ValueError for a hook that could not work, or should not."""
    if sum(map(bool, (hook.url, hook.command, hook.mail_to))) != 1:
        raise ValueError(f"hook {name}: give one of url, command and mail_to")
    if not hook.on:
        raise ValueError(f"hook {name}: `on` is empty")
    if hook.command and not hook.command[0].startswith("/"):
        raise ValueError(f"hook {name}: give the program's whole path, not {hook.command[0]!r}")
    for address in hook.mail_to:
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"hook {name}: {address!r} is no mail address")
    if hook.url:
        parts = urlsplit(hook.url)
        if not parts.hostname or parts.username or parts.password:
            raise ValueError(f"hook {name}: the url must be https://host/..., without user or password")
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in hosts):
            raise ValueError(f"hook {name}: the url must begin with https:// (http for hosts in hook_hosts)")


def is_public(address: str) -> bool:
    """Whether a webhook may reach the address without its host being in `hook_hosts`.

    Loopback, private, link-local (where clouds keep credentials), multicast and reserved ones may not, nor
    IPv6 addresses that stand for such an IPv4 one.
    """
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast
