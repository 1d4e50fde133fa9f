"""How long one picture of a big farm takes: 500 jobs, 100 nodes. By hand: python -m tests.bench.bench_live

It counts what happens at each redraw on a busy screen: the picture, and Rich's turning it into bytes. Reading
the API's answers (once a second, in a thread of its own) is timed apart.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.screen import Screen

from farm.live.render import render
from farm.live.snapshot import fetch
from tests.edges.live_farm import FakeFarm, a_job, a_node, an_event


def timed_ms(act: Callable[[], object], *, times: int = 50) -> float:
    """Median of `times` calls, in milliseconds."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        spent.append((time.perf_counter() - began) * 1000)
    return median(spent)


def main() -> None:
    farm = FakeFarm()
    farm.jobs = [
        a_job(n, name=f"影_{n} " * 8, waiting="12 nodes: VRAM 24 GB < 31 GB" * 3) for n in range(500)
    ]
    farm.nodes = [a_node(f"node-{n:03d}") for n in range(100)]
    farm.events = [an_event(n) for n in range(50)]
    snapshot = fetch(farm.get)
    print(f"read the answers: {timed_ms(lambda: fetch(farm.get), times=10):.1f} ms")
    for width, height in ((80, 24), (200, 50)):
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, height=height
        )

        def draw(width: int = width, height: int = height, console: Console = console) -> None:
            console.print(Screen(render(snapshot, width, height, colour=True)), end="")

        print(f"draw {width}×{height}: {timed_ms(draw):.1f} ms median")


if __name__ == "__main__":
    main()
