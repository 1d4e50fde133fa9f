"""How renderers say that they wait until a licence is free. A failure is something else: see `Fatal`."""

from __future__ import annotations

import re

_WAITS = re.compile(r"\b(?:waiting|waits?|queued?)\b.{0,40}\bfor\b.{0,40}\blicen[sc]e", re.IGNORECASE)
_READ = 500


def waits(line: str) -> bool:
    """ "-- waiting for license", "Queued for 1 license of ..."."""
    return _WAITS.search(line[:_READ]) is not None
