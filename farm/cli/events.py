"""`farm events` and `farm hooks`."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from farm.cli import show
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, find_job
from farm.cli.show import Column, cell
from farm.control.fields import HOOK_FIELDS, event_fields
from farm.control.views import HookView
from farm.errors import Unavailable, UserError
from farm.model.events import Event

_LOOKED_FOR_EVENTS: Final = 1_000
"""The newest that a filter is held against: the API's largest page."""


_RECONNECT_S: Final = 1.0


def events(client: Connected, *, job: str | None, limit: int, is_following: bool, wanted: Wanted) -> None:
    if is_following and (wanted.columns is not None or wanted.sort is not None):
        raise UserError("--follow prints events as they come: leave --columns and --sort away")
    listing = Listing(Event, event_fields(time.time()), "events", wanted)
    connected = client()
    job_id = None if job is None else find_job(connected, job)[0].job.id
    looked = _LOOKED_FOR_EVENTS if wanted.is_filtered else limit
    newest = connected.get("/events", newest="true", limit=max(looked, limit), job_id=job_id)["items"]
    newest.sort(key=lambda item: int(item["id"]))
    found = list(listing.matching(newest))[-limit:]
    if wanted.columns is not None or wanted.sort is not None or (not is_following and wanted.is_for_scripts):
        columns = [Column("Event", shrinks=True)]
        listing.put(found, columns, lambda event: [cell(event.text)], empty="nothing has happened yet")
        return
    for event, item in found:
        _event(event, item, is_json=wanted.is_json, is_quiet=wanted.is_quiet)
    if not found:
        show.note("no such events yet" if wanted.is_filtered else "nothing has happened yet")
    last = newest[-1]["id"] if newest else 0
    while is_following:
        try:
            for event in connected.events(after=last, job_id=job_id):
                last = event.id
                if listing.filter(event):
                    _event(event, None, is_json=wanted.is_json, is_quiet=wanted.is_quiet)
        except Unavailable as error:
            show.note(f"{error}; trying again")
        time.sleep(_RECONNECT_S)


def hooks(client: Connected, wanted: Wanted) -> None:
    listing = Listing(HookView, HOOK_FIELDS, "hooks", wanted)
    empty = (
        "no such hooks" if wanted.is_filtered else "this farm has no hooks: its setting `hooks` defines them"
    )
    columns = [Column("Hook", shrinks=True), Column("Kind"), Column("When a job"), Column("Of")]
    listing.put(listing.matching(client().items("/hooks")), columns, _hook_row, empty=empty)


def _hook_row(hook: HookView) -> list[Any]:
    of = "every job" if hook.every_job else "jobs that ask for it"
    return [cell(hook.name), cell(hook.kind), cell(", ".join(hook.on)), of]


def _event(event: Event, item: Any, *, is_json: bool, is_quiet: bool) -> None:
    if is_quiet:
        print(event.id, flush=True)
        return
    if is_json:
        from dataclasses import asdict

        show.data(asdict(event) if item is None else item)
        sys.stdout.flush()
        return
    who = f" by {event.actor}" if event.actor else ""
    at = time.strftime("%d %b %H:%M:%S", time.localtime(event.at))
    told = ": ".join(part for part in (event.subject, event.text) if part)
    show.line(f"{at} {event.kind} {told}{who}")
    sys.stdout.flush()
