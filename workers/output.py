"""A renderer's output: decoded, split into lines, read by the plugin's parser, capped and sent in batches.

Memory is bounded whatever comes: a line longer than `MAX_LINE` characters is cut up, and of the whole only
the first and the last `KEPT_BYTES` are kept.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from farm.model.plugin import Parser, Plugin, Reading
from farm.text import size
from workers.endings import MAX_WARNINGS, MEMORY_SIGNS, STORAGE_SIGNS, Readings, one_line

MAX_LINE = 4096
"""Characters."""
KEPT_BYTES = 256 * 1024
"""At each end."""
BATCH_BYTES = 16 * 1024
BATCH_DELAY_S = 0.2
PROGRESS_DELAY_S = 0.5
_LAST_LINES = 50
_SAID = 200
"""Characters of the last line that are told."""

_log = logging.getLogger(__name__)
_DIRECTIVE = re.compile(r"openjd_(progress|status|fail|redacted_env): (.+)")


@cache
def _plugin(kind: str) -> Plugin | None:
    for entry in entry_points(group="ridgeline.plugins", name=kind):
        try:
            plugin: Plugin = entry.load()
        except Exception:  # noqa: BLE001  a plugin that is broken here must not keep frames from rendering
            _log.exception("plugin %r cannot be loaded; its output is not read", kind)
            return None
        return plugin
    return None


def parser_for(kind: str, frames: tuple[int, ...]) -> Parser | None:
    """The parser of plugin `kind`, made for these frames; None when there is none."""
    plugin = _plugin(kind)
    if plugin is None:
        return None
    try:
        return plugin.parser(frames)
    except Exception:  # noqa: BLE001  as above
        _log.exception("the parser of plugin %r cannot be made", kind)
        return None


def licence_statuses(kind: str) -> tuple[int, ...]:
    """Exit statuses by which the renderer of plugin `kind` says that it got no licence."""
    plugin = _plugin(kind)
    return () if plugin is None else plugin.licence_statuses


class Output:
    """The output of one attempt. May be fed from any thread."""

    def __init__(
        self,
        *,
        send_text: Callable[[str], None],
        send_progress: Callable[[float | None, str], None],
        parser: Parser | None = None,
        header: str = "",
        reads_directives: bool = True,
    ) -> None:
        """`header` is a first line that is shown only when there is something else to show.

        reads_directives: understand `openjd_progress:` and its kin (an OpenJD session does that itself).
        """
        self.readings = Readings()
        self._send_text = send_text
        self._send_progress = send_progress
        self._parser = parser
        self._header = header
        self._reads_directives = reads_directives
        self._lock = threading.RLock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._is_after_return = False
        self._secrets: list[str] = []
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._due: float | None = None
        self._head_left = KEPT_BYTES
        self._head_end = ""
        self._tail: deque[tuple[str, int]] = deque()
        self._tail_bytes = 0
        self._dropped_bytes = 0
        self._is_progress_new = False
        self._progress_after = 0.0

    # --- in ---

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Take bytes as they come from the pipe."""
        with self._lock:
            text = self._decoder.decode(data, is_last)
            if self._is_after_return and text:
                self._is_after_return = False
                text = text.removeprefix("\n")
            if text:
                self._is_after_return = text.endswith("\r")
                if "\r" in text:
                    text = text.replace("\r\n", "\n").replace("\r", "\n")
            text = self._rest + text
            cut = text.rfind("\n") + 1
            self._rest = text[cut:]
            if is_last and self._rest:
                text, self._rest = f"{text}\n", ""
            elif len(self._rest) > MAX_LINE:
                cut += len(self._rest) - len(self._rest) % MAX_LINE
                self._rest = text[cut:]
                text = f"{text[:cut]}\n"
            else:
                text = text[:cut]
            if text:
                self._take(text)

    def feed_line(self, line: str) -> None:
        """Take one decoded line of the renderer."""
        with self._lock:
            self._take(f"{line}\n")

    def note(self, line: str) -> None:
        """A line of our own: into the log, past the parser."""
        with self._lock:
            self._keep(f"{line}\n")

    def _take(self, text: str) -> None:
        """Take whole lines."""
        if "\0" in text:
            text = text.replace("\0", "\ufffd")
        lines = text[:-1].split("\n")
        if len(text) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
            lines = [
                line[at : at + MAX_LINE] for line in lines for at in range(0, max(len(line), 1), MAX_LINE)
            ]
            text = "\n".join(lines) + "\n"
        if self._reads_directives and "openjd_" in text:
            for line in lines:
                self._read_directive(line)
        said = next((line for line in reversed(lines) if line.strip()), "")
        self.readings.output_at = time.monotonic()
        if said:
            self.readings.last_line, self.readings.licence = said[:_SAID], ""
        if self._parser is not None:
            for line in lines:
                self._read(line)
        self._look_for_signs(text)
        for secret in self._secrets:
            text = text.replace(secret, "********")
        self._keep(text)

    def _read(self, line: str) -> None:
        if self._parser is None:
            return
        try:
            reading = self._parser.feed(line)
        except Exception as error:  # noqa: BLE001  an error in our own parser never changes a task's state
            self._parser = None
            _log.exception("the parser failed on %r", line[:200])
            self.note(f"(farm: the output parser failed with {type(error).__name__}; no progress from here)")
            return
        if reading is not None:
            self._learn(reading)

    def _learn(self, reading: Reading) -> None:
        known = self.readings
        if reading.is_waiting_for_licence:
            known.licence = known.last_line
        if reading.fraction is not None and reading.fraction != known.fraction:
            known.progress_at = time.monotonic()
        if reading.fraction is not None or reading.message:
            known.fraction = reading.fraction if reading.fraction is not None else known.fraction
            known.message = one_line(reading.message) or known.message
            self._is_progress_new = True
        if reading.warning and len(known.warnings) < MAX_WARNINGS:
            warning = one_line(reading.warning)
            if warning not in known.warnings:
                known.warnings.append(warning)
        if reading.fatal and not known.fatal:
            known.fatal, known.is_final = reading.fatal, reading.is_final
        known.outcome = known.outcome or reading.outcome
        known.width = reading.width or known.width
        known.height = reading.height or known.height
        if reading.is_rendering and known.rendering_since is None:
            known.rendering_since = time.monotonic()

    def _read_directive(self, line: str) -> None:
        match = _DIRECTIVE.match(line)
        if match is None:
            return
        kind, value = match.groups()
        if kind == "progress":
            try:
                percent = float(value)
            except ValueError:
                return
            if 0 <= percent <= 100:
                self.progress(percent / 100, "")
        elif kind == "status":
            self.progress(None, value)
        elif kind == "fail":
            self.readings.fail_message = value
        else:
            self._hide(value)

    def _hide(self, assignment: str) -> None:
        """`NAME=value`, or that as a JSON string: never show the value again."""
        texts = [assignment]
        if assignment.startswith('"'):
            try:
                texts.append(str(json.loads(assignment)))
            except ValueError:
                pass
        self._secrets += [secret for text in texts if (secret := text.partition("=")[2].rstrip('"'))]

    def progress(self, fraction: float | None, message: str) -> None:
        """Progress from elsewhere than the parser."""
        with self._lock:
            self._learn(Reading(fraction=fraction, message=message))

    def _look_for_signs(self, text: str) -> None:
        if not self.readings.storage_sign:
            self.readings.storage_sign = _line_with(STORAGE_SIGNS, text)
        if not self.readings.memory_sign:
            self.readings.memory_sign = _line_with(MEMORY_SIGNS, text)

    # --- out ---

    def tick(self, now: float) -> float | None:
        """Send what is due; the answer is how many seconds until something is due again, None: nothing is."""
        with self._lock:
            waits = []
            if self._due is not None:
                if now >= self._due:
                    self._flush()
                else:
                    waits.append(self._due - now)
            if self._is_progress_new:
                if now >= self._progress_after:
                    self._is_progress_new = False
                    self._progress_after = now + PROGRESS_DELAY_S
                    self._send_progress(self.readings.fraction, self.readings.message)
                else:
                    waits.append(self._progress_after - now)
            return min(waits, default=None)

    def close(self) -> None:
        """No more comes: send the rest, with the count of what was left out of the middle."""
        with self._lock:
            self.feed(b"", is_last=True)
            tail = "".join(text for text, _ in self._tail)
            excess = len(tail.encode()) - KEPT_BYTES
            if excess > 0:
                shortened = tail.encode()[excess:].decode(errors="ignore")
                shortened = shortened[shortened.find("\n") + 1 :]
                self._dropped_bytes += len(tail.encode()) - len(shortened.encode())
                tail = shortened
            if self._dropped_bytes:
                self._queue(f"… {size(self._dropped_bytes)} left out …\n")
            for at in range(0, len(tail), BATCH_BYTES):
                self._queue(tail[at : at + BATCH_BYTES])
            self._head_end = (self._head_end + tail)[-MAX_LINE * 4 :]
            self._tail.clear()
            self._flush()

    def last_lines(self) -> list[str]:
        """The last lines that were kept; ask after `close`."""
        return self._head_end.splitlines()[-_LAST_LINES:]

    def _keep(self, text: str) -> None:
        if self._header:
            header, self._header = self._header, ""
            self._keep(f"{header}\n")
        length = len(text) if text.isascii() else len(text.encode())
        if self._head_left > 0:
            if length <= self._head_left:
                self._head_left -= length
                self._queue(text, length)
                return
            cut = text.rfind("\n", 0, self._head_left) + 1
            self._queue(text[:cut])
            self._head_left = 0
            text = text[cut:]
            length = len(text.encode())
        self._tail.append((text, length))
        self._tail_bytes += length
        while self._tail_bytes - self._tail[0][1] >= KEPT_BYTES:
            _, left_out = self._tail.popleft()
            self._tail_bytes -= left_out
            self._dropped_bytes += left_out

    def _queue(self, text: str, length: int | None = None) -> None:
        if not text:
            return
        self._pending.append(text)
        self._pending_bytes += len(text.encode()) if length is None else length
        if self._due is None:
            self._due = time.monotonic() + BATCH_DELAY_S
        if self._pending_bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._due = None
        if self._pending:
            text = "".join(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            self._head_end = (self._head_end + text)[-MAX_LINE * 4 :]
            self._send_text(text)


def _line_with(signs: tuple[str, ...], text: str) -> str:
    """The first line of `text` that holds one of `signs`, or nothing."""
    for sign in signs:
        at = text.find(sign)
        if at >= 0:
            end = text.find("\n", at)
            return text[text.rfind("\n", 0, at) + 1 : end].strip()
    return ""
