"""Keeps the picture on the screen: the one place of the live view that touches the terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from rich.console import Console
from rich.live import Live

from farm.errors import UserError
from farm.live.feed import Feed, Send
from farm.live.lists import lists, target
from farm.live.plain import changes, overview
from farm.live.render import render, within_log
from farm.live.snapshot import Get, Snapshot, Wants, fetch
from farm.live.view import QUIT, Pane, View, keys, pressed

_ESCAPE_S = 0.1
"""An escape that nothing follows for so long is the key, not the beginning of another one."""
_SIGNALS = (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(get: Get, *, send: Send | None = None, interval_s: float = 1.0, once: bool = False) -> int:
    """Show the farm until `q` or Ctrl-C; returns the exit status. send: None: it may only look.

    Without a terminal on the output (or on one that cannot place its cursor) prints a line for each change,
    until Ctrl-C. `once` prints how things stand, and ends. Raises UserError when the server refuses us, and
    with `once` Unavailable when it does not answer; otherwise the view waits for it to come back.
    Must be called from the main thread: it listens to signals.
    """
    if interval_s <= 0:
        raise UserError(f"the interval is {interval_s:g} s; it must be more than 0")
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that is not UTF-8 shows ? for what it has no sign for, instead of ending us.
        sys.stdout.reconfigure(errors="replace")
    if once:
        _say(overview(fetch(get)))
        return 0
    console = Console(markup=False, highlight=False, emoji=False)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        return _follow(get, interval_s)
    return _full_screen(get, send, interval_s, console)


# --- lines --------------------------------------------------------------------------------------------


def _say(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _follow(get: Get, interval_s: float) -> int:
    fresh = threading.Event()
    feed = Feed(get, interval_s=interval_s, notify=fresh.set)
    feed.start()
    shown = Snapshot()
    try:
        while True:
            # A wait without a limit would be deaf to Ctrl-C on some systems.
            if not fresh.wait(1.0):
                continue
            fresh.clear()
            new = feed.latest()
            if shown.farm is None and new.farm is not None:
                _say(overview(new))
            else:
                _say(changes(shown, new))
            shown = new
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # `farm live | head`: nobody reads any more. The interpreter's own last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        feed.stop()


# --- full screen --------------------------------------------------------------------------------------


def _full_screen(get: Get, send: Send | None, interval_s: float, console: Console) -> int:
    has_colour = console.color_system is not None and not console.no_color
    view, typed, typed_at = View(), b"", 0.0
    with ExitStack() as stack:
        reader, writer = _pipe(stack)
        feed = Feed(get, interval_s=interval_s, notify=lambda: _poke(writer), send=send)
        stack.callback(feed.stop)
        stack.enter_context(_signals_into(writer))
        keyboard = stack.enter_context(_cbreak())
        live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        feed.start()
        while True:
            snapshot = feed.latest()
            width, height = os.get_terminal_size(sys.stdout.fileno())
            console.size = (width, height)  # else COLUMNS would win for ever
            live.update(render(snapshot, width, height, colour=has_colour, view=view), refresh=True)
            # Wakes up without news too: the header counts how long the server has been lost.
            ready, _, _ = select.select([reader, *keyboard], [], [], _ESCAPE_S if typed else interval_s)
            found: list[str] = []
            is_late = time.monotonic() - typed_at >= _ESCAPE_S
            if typed == b"\x1b" and is_late and not set(ready) & set(keyboard):
                found, typed = ["escape"], b""
            if reader in ready:
                woken = os.read(reader, 4096)
                if signal.SIGINT in woken:
                    return 0
                ended = [number for number in (signal.SIGTERM, signal.SIGHUP) if number in woken]
                if ended:
                    return 128 + ended[0]
            for fd in keyboard:
                if fd in ready:
                    new = os.read(fd, 1024)
                    if not new:
                        return 128 + signal.SIGHUP  # the terminal has gone
                    found, typed = keys(typed + new)
                    typed_at = time.monotonic()
            for key in found:
                if key == QUIT and view.typing is None and view.asking is None:
                    return 0
                feed.hush()
                listed = lists(snapshot, view)
                view, action = pressed(view, key, listed.ids, target(listed, view))
                if view.focus is Pane.LOG:
                    view = within_log(view, listed, width, height)
                if action is not None:
                    feed.act(action)
            feed.want(_wants(view))


def _wants(view: View) -> Wants:
    places = {view.focus, *view.before}
    return Wants(
        job_id=view.job_id if Pane.TASKS in places else None,
        task_id=view.task_id if Pane.LOG in places else None,
    )


def _pipe(stack: ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    stack.callback(os.close, writer)
    os.set_blocking(writer, False)
    return reader, writer


def _poke(writer: int) -> None:
    with suppress(BlockingIOError):  # full: the loop will wake up anyway
        os.write(writer, b"\0")


@contextmanager
def _signals_into(writer: int) -> Iterator[None]:
    """Signals become bytes in the pipe: the loop meets them where it waits, never while it draws."""
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = [(number, signal.signal(number, lambda *_: None)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)


@contextmanager
def _cbreak() -> Iterator[list[int]]:
    """Keys come one by one and are not echoed. Yields the keyboard, empty when the input is no terminal."""
    if not sys.stdin.isatty():
        yield []
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        modes = termios.tcgetattr(fd)
        # Ctrl-Z would leave the shell on our screen with our modes: q is near enough.
        modes[6][termios.VSUSP] = os.fpathconf(fd, "PC_VDISABLE").to_bytes(1, "big")
        termios.tcsetattr(fd, termios.TCSADRAIN, modes)
        yield [fd]
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
