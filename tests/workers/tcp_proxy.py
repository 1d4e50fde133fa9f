"""A TCP proxy that can be cut, held or slowed: a network between two processes that a test may break."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time


class TcpProxy:
    """`cut`: connections break, and none is taken until it is mended. `hold`: what is sent in a direction
    does not arrive until then, as behind a firewall that drops packets."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        """Where new connections lead."""
        self.late_s = (0.0, 0.0)
        """Least and most that each piece takes on its way."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._goes_out, self._comes_in = threading.Event(), threading.Event()
        self.mend()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            opened, self._open = self._open, []
        for end in opened:
            _break(end)

    def hold(self, *, out: bool = False, back: bool = False) -> None:
        """out: what the one who connected sends. back: what it is sent."""
        if out:
            self._goes_out.clear()
        if back:
            self._comes_in.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False
        self._goes_out.set()
        self._comes_in.set()

    def close(self) -> None:
        self.cut()
        self.mend()
        _break(self._listener)
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    inner.close()
                    continue
                try:
                    outer = socket.create_connection(self.target)
                except OSError:
                    inner.close()
                    continue
                self._open += [inner, outer]
            for source, target, passes in (
                (inner, outer, self._goes_out),
                (outer, inner, self._comes_in),
            ):
                threading.Thread(target=self._pump, args=(source, target, passes), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, passes: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.late_s[1]:
                    time.sleep(random.uniform(*self.late_s))
                passes.wait()
                target.sendall(data)
        _break(target)


def _break(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
