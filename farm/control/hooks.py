"""Calls hooks: webhooks, commands and mails, each tried until it went well or is given up.

What people typed reaches a hook as JSON only: in a request's body, on a command's standard input, in a mail's
text. A webhook goes to the address that was looked up and checked, never to one that a second look-up or a
redirect gives; what is answered is read no further than its status.
"""

from __future__ import annotations

import json
import logging
import smtplib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping
from email.message import EmailMessage
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import sqlalchemy as sa

from farm.control.scaling import Scaler
from farm.errors import FarmError, Unavailable
from farm.flow.hooks import is_public, payload, retry_delay_s, subject
from farm.flow.scaling import receiver
from farm.model.events import EventKind
from farm.model.hooks import Hook
from farm.settings import HOOK_VARIABLES, Settings, inherited_environment
from farm.store import events, hooks, jobs
from farm.store.engine import reading, writing
from farm.text import clean, duration
from farm.trouble import Trouble

_LOG = logging.getLogger(__name__)
_LOOK_S: Final = 2.0
_WEB_LIMIT_S: Final = 5.0
_MAIL_LIMIT_S: Final = 15.0
_COMMAND_LIMIT_S: Final = 60.0
_MAX_ERROR: Final = 500

Resolve = Callable[[str, int], list[str]]


class HookError(FarmError):
    """A call did not go well; the text says why."""


class HookCaller:
    """The loop. Several may run at once, in as many processes: each call is one's."""

    def __init__(
        self, engine: sa.Engine, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._hooks = settings.hooks
        self._scaler = Scaler(engine, settings.scale, clock=clock)
        self._clock = clock
        self._trouble = Trouble()
        self._has_begun = False

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; where there is nothing to call, until that is noted."""
        while not stop.is_set():
            try:
                self.begin()
                if not self._hooks and not self._settings.scale:
                    return
                self.round()
                self.scale()
                if (lasted_s := self._trouble.lasted_s(self._clock())) is not None:
                    _LOG.info("hooks go on after %s", duration(lasted_s))
            except Unavailable as error:
                if self._trouble.is_news(str(error), self._clock()):
                    _LOG.warning("hooks wait: %s", clean(str(error), one_line=True))
            stop.wait(_LOOK_S)

    def begin(self) -> None:
        """Once: forget which hooks there were, but for those there are."""
        if not self._has_begun:
            with writing(self._engine) as db:
                hooks.forget_others(db, self._hooks)
            self._has_begun = True

    def round(self) -> int:
        """Owe what is new and make the calls that are due; returns how many were made."""
        with writing(self._engine) as db:
            hooks.gather(db, self._hooks)
            taken = hooks.take(db)
        for call in taken:
            self._make(call)
        return len(taken)

    def scale(self) -> int:
        """Ask for devices, or to be rid of some, where prices say so; returns how often.

        A call that fails is not repeated: while the price stays, the rule asks again.
        """
        asked = self._scaler.round()
        for name, rule, told in asked:
            try:
                deliver(receiver(rule), told, self._settings)
            except FarmError as failure:
                error = clean(str(failure), limit=_MAX_ERROR, one_line=True)
                with writing(self._engine) as db:
                    events.happened(db, EventKind.HOOK_FAILED, f"scale {name}: {error}")
                _LOG.warning("scale %s: %s", name, error)
        return len(asked)

    def _make(self, call: hooks.Call) -> None:
        error = ""
        try:
            hook = self._hooks.get(call.hook)
            if hook is None:
                raise HookError("the farm has no such hook any more")
            with reading(self._engine) as db:
                job = jobs.read_job(db, call.job_id)
            told = payload(call.event, job, number=call.id, at=call.at, text=call.text)
            deliver(hook, told, self._settings)
        except FarmError as failure:
            error = clean(str(failure), limit=_MAX_ERROR, one_line=True)
        with writing(self._engine) as db:
            if not error:
                hooks.went_well(db, call.id)
                return
            delay_s = retry_delay_s(call.tries)
            hooks.failed(db, call.id, error, delay_s=delay_s)
            if delay_s is None:
                text = f"hook {call.hook} was given up after {call.tries} tries: {error}"
                events.happened(db, EventKind.HOOK_FAILED, text, job_id=call.job_id)
        _LOG.warning("hook %s for job %d: %s", call.hook, call.job_id, error)


def deliver(hook: Hook, told: Mapping[str, Any], settings: Settings) -> None:
    """Raises HookError."""
    if hook.url:
        post(hook.url, told, hosts=settings.hook_hosts)
    elif hook.command:
        run_command(hook.command, told)
    else:
        send_mail(hook.mail_to, told, settings)


# --- webhooks -----------------------------------------------------------------------------------------


def look_up(host: str, port: int) -> list[str]:
    """Addresses of a host. Raises HookError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HookError(f"{host} cannot be looked up: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def post(
    url: str,
    told: Mapping[str, Any],
    *,
    hosts: Collection[str],
    resolve: Resolve = look_up,
    trusted: ssl.SSLContext | None = None,
) -> None:
    """POST JSON to the address that `url` has now, if it may be reached. Raises HookError.

    hosts: may have private addresses, and plain http. trusted: for tests.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = resolve(host, port)
    if not addresses:
        raise HookError(f"{host} has no address")
    if host not in hosts:
        bad = [address for address in addresses if not is_public(address)]
        if bad:  # one is enough: an answer that mixes them is an attack
            raise HookError(f"{host} has the private address {bad[0]}; the setting hook_hosts may allow it")
    address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    to = httpx.URL(url).copy_with(netloc=f"{address}:{port}".encode())
    named = host if port in (80, 443) else f"{host}:{port}"
    try:
        with (
            httpx.Client(
                timeout=_WEB_LIMIT_S, follow_redirects=False, trust_env=False, verify=trusted or True
            ) as client,
            client.stream(
                "POST",
                to,
                content=json.dumps(told).encode(),
                headers={"Host": named, "Content-Type": "application/json", "User-Agent": "ridgeline"},
                extensions={"sni_hostname": host},
            ) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HookError(f"{host} cannot be reached: {error or type(error).__name__}") from error
    if not 200 <= status < 300:
        raise HookError(f"{host} answered HTTP {status}")


# --- commands -----------------------------------------------------------------------------------------


def run_command(
    command: tuple[str, ...], told: Mapping[str, Any], *, limit_s: float = _COMMAND_LIMIT_S
) -> None:
    """Run a program as the settings have it: nothing that people typed is among its words.

    Raises HookError when it ends with another status than 0, or runs too long.
    """
    try:
        done = subprocess.run(
            list(command),
            input=json.dumps(told).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
            env=inherited_environment(HOOK_VARIABLES),
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise HookError(f"{command[0]} ran longer than {limit_s:.0f} s and was stopped") from error
    except OSError as error:
        raise HookError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise HookError(f"{command[0]} ended with status {done.returncode}: {last}")


# --- mail ---------------------------------------------------------------------------------------------


def send_mail(to: tuple[str, ...], told: Mapping[str, Any], settings: Settings) -> None:
    """Raises HookError."""
    message = EmailMessage()
    message["From"] = settings.mail_from
    message["To"] = ", ".join(to)
    message["Subject"] = subject(told)
    message["Auto-Submitted"] = "auto-generated"
    job = told["job"]
    lines = [
        f"Job {job['id']} {job['name']} of {job['user'] or 'nobody'}: {told['event']}",
        *([told["text"]] if told["text"] else []),
        f"{job['done']} of {job['tasks']} tasks done, {job['failed']} failed",
        *job["output_directories"],
    ]
    message.set_content("\n".join(lines))
    host, _, port = settings.mail_server.partition(":")
    try:
        with smtplib.SMTP(host, int(port or 25), timeout=_MAIL_LIMIT_S) as server:
            if server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise HookError(f"{settings.mail_server} did not take the mail: {error}") from error
