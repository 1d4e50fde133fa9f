"""`farm reconcile`: the disk against the database. Runs on the server, where the storage is mounted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from farm.cli import show
from farm.cli.listing import Listing, Wanted
from farm.cli.show import shown
from farm.control.detail_fields import DIFFERENCE_FIELDS
from farm.control.reconcile import differences, render_again
from farm.flow.reconcile import Difference, Finding
from farm.model.ids import JobId
from farm.settings import Settings
from farm.store import schema
from farm.store.engine import open_engine
from farm.text import plural

_SHOWN = 10
"""Of each kind, unless all are asked for."""
_AGREE = "disk and database agree"


def run_reconcile(
    settings: Settings, job_ids: Sequence[JobId], *, fix: bool, shows_all: bool, wanted: Wanted
) -> int:
    """Print what differs; 1 when something does and was not put right. Raises UserError, Unavailable."""
    listing = Listing(Finding, DIFFERENCE_FIELDS, "differences", wanted)
    engine = open_engine(settings.database)
    try:
        schema.check(engine)
        found = list(differences(engine, job_ids))
        fixed = render_again(engine, found) if fix else 0
    finally:
        engine.dispose()
    is_told = listing.put_chosen(found, empty=_AGREE)
    if not is_told and wanted.is_json:
        show.data({"findings": [asdict(finding) for finding in found], "rendered_again": fixed})
    elif not is_told:
        _print(found, shows_all=shows_all)
        if fix:
            show.line(f"{plural(fixed, 'task')} will be rendered again")
        elif not found:
            show.line(_AGREE)
    left = [f for f in found if not (fix and f.difference is Difference.FILES_GONE)]
    return 1 if left else 0


def _print(found: Sequence[Finding], *, shows_all: bool) -> None:
    for difference in Difference:
        of_kind = [finding for finding in found if finding.difference is difference]
        for finding in of_kind if shows_all else of_kind[:_SHOWN]:
            show.line(f"{difference}: {shown(finding.text, limit=1000)}")
            show.line(f"  -> {finding.advice}")
        if not shows_all and len(of_kind) > _SHOWN:
            show.line(f"{difference}: {len(of_kind) - _SHOWN} more (--all)")
