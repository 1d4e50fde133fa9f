"""A renderer that does what its arguments say, one after the other. Standard library only.

say TEXT                print a line                  say-part TEXT    the same without a line end
write FILE BYTES        write that many bytes         ppm FILE W H     write an image
cut FILE BYTES          shorten a file                sleep SECONDS
touch FILE              make an empty file            wait-for FILE    until it exists
setsid FILE             leave a double-forked child in a session of its own that writes its pid into FILE
child FILE              leave a plain child that does the same and holds the output open
ignore-term             on SIGTERM, say so and go on
flood MEBIBYTES LINE    print that much, in one endless line when LINE is empty
env NAME                print a variable              fds              print the open descriptors
eat MEBIBYTES           hold that much memory for a moment
kill SIGNAL             of itself                     exit STATUS
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def _stay(file: str) -> None:
    """Write our pid, whole, and stay."""
    partial = Path(f"{file}.part")
    partial.write_text(str(os.getpid()))
    partial.rename(file)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _leave(file: str, *, is_hidden: bool) -> None:
    if os.fork():
        return
    if is_hidden:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
    _stay(file)


def main(words: list[str]) -> None:
    def word() -> str:
        return words.pop(0)

    while words:
        match word():
            case "say":
                print(word(), flush=True)
            case "say-part":
                print(word(), end="", flush=True)
            case "write":
                Path(word()).write_bytes(b"x" * int(word()))
            case "ppm":
                path, width, height = Path(word()), int(word()), int(word())
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(f"P6 {width} {height} 255\n".encode() + bytes(3 * width * height))
            case "cut":
                os.truncate(word(), int(word()))
            case "sleep":
                time.sleep(float(word()))
            case "touch":
                Path(word()).touch()
            case "wait-for":
                path = Path(word())
                while not path.exists():
                    time.sleep(0.01)
            case "setsid":
                _leave(word(), is_hidden=True)
            case "child":
                _leave(word(), is_hidden=False)
            case "ignore-term":
                signal.signal(signal.SIGTERM, lambda *_: print("ignored", flush=True))
            case "flood":
                left = int(word()) << 20
                text = word()
                line = f"{text}\n".encode() if text else b"y"
                block = line * (65536 // len(line))
                while left > 0:
                    left -= os.write(1, block)
            case "env":
                name = word()
                print(f"{name}={os.environ.get(name)}", flush=True)
            case "fds":
                print("fds", sorted(map(int, os.listdir("/proc/self/fd")))[:-1], flush=True)
            case "eat":
                eaten = bytearray(int(word()) << 20)
                eaten[::4096] = b"x" * len(eaten[::4096])
                time.sleep(0.4)
            case "kill":
                os.kill(os.getpid(), int(word()))
            case "exit":
                sys.stdout.flush()
                os._exit(int(word()))
            case other:
                raise SystemExit(f"unknown word {other!r}")


main(sys.argv[1:])
