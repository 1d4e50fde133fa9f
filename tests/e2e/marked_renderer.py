"""A renderer whose files say whose they are and whether they are whole: `marked_renderer.py FILE [WORD ...]`.

Writes FILE piece by piece, each line with the attempt's id; the last line has a checksum of all before it.

seconds N      take that long (0.2), asleep
busy N         use the CPU for a moment every N seconds: a renderer that only sleeps is taken for hung
hide FILE      leave a double-forked child in a session of its own, which writes its pid into FILE and goes
               on writing into the output; it and the renderer ignore SIGTERM
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import sys
import time
from pathlib import Path

PIECES = 10
BUSY_CPU_S = 0.06


def whose(path: Path) -> str:
    """The attempt that wrote the file. Raises AssertionError when it is torn, or not of one attempt."""
    *lines, last = path.read_text().splitlines() or [""]
    body = "".join(f"{line}\n" for line in lines)
    attempts = {line.split()[-1] for line in lines}
    assert last == f"end {hashlib.sha256(body.encode()).hexdigest()}", f"{path} is torn: {body}{last}"
    assert len(lines) == PIECES, f"{path} has {len(lines)} pieces"
    assert len(attempts) == 1, f"{path} is of {attempts}"
    return attempts.pop()


def _hide(file: str, output: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    Path(f"{file}.part").write_text(str(os.getpid()))
    Path(f"{file}.part").rename(file)
    while True:
        time.sleep(0.05)
        with output.with_suffix(".hidden").open("a") as out:
            out.write("still here\n")


def _take(seconds: float, busy_every_s: float) -> None:
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, busy_every_s))
        used = time.process_time()
        while busy_every_s < math.inf and time.process_time() - used < BUSY_CPU_S:
            pass


def main(output: Path, words: list[str]) -> None:
    options = dict(zip(words[::2], words[1::2], strict=True))
    seconds = float(options.get("seconds", "0.2"))
    busy_every_s = float(options.get("busy", "inf"))
    if "hide" in options:
        _hide(options["hide"], output)
    attempt_id = os.environ["FARM_ATTEMPT_ID"]
    body = ""
    with output.open("w") as out:
        for number in range(PIECES):
            line = f"piece {number} of {attempt_id}\n"
            out.write(line)
            out.flush()
            body += line
            _take(seconds / PIECES, busy_every_s)
        out.write(f"end {hashlib.sha256(body.encode()).hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
