"""A file of JSON lines that is appended to and now and then written anew: the form of journal and spool.

A crash can cut the last line short (or leave a hole after a full disk): lines that cannot be read are
skipped. Nothing is fsynced; see `workers.journal` for why that is enough.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_LOG = logging.getLogger(__name__)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def line_of(record: dict[str, Any]) -> bytes:
    return _encode(record).encode()


class LineFile:
    """Owned by one thread. Every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        """In the file now."""
        self._file: BinaryIO | None = None

    def read(self) -> Iterator[dict[str, Any]]:
        """The records of earlier sessions, oldest first; none when there is no file."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        for number, line in enumerate(data.splitlines(), 1):
            if not line:
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield record
            else:
                _LOG.warning("%s: line %d cannot be read and is skipped", self.path.name, number)

    def append(self, records: Iterable[bytes]) -> None:
        """Add records, each a line of JSON without its end, with one write."""
        lines = list(records)
        if not lines:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            if self._file.tell() > 0:
                # A line that a crash cut short must not swallow the next one.
                self._file.write(b"\n")
        self._file.write(b"\n".join(lines) + b"\n")
        self.lines += len(lines)

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Replace the whole content; a crash leaves the old or the new one."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = list(records)
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_bytes(b"".join(line + b"\n" for line in lines))
        os.replace(fresh, self.path)
        self.lines = len(lines)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
