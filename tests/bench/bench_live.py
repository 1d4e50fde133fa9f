"""What the live view costs on a big farm: 500 jobs, 100 nodes. By hand: python -m tests.bench.bench_live

Everything that happens at four refreshes a second: reading the API's answers (JSON and all) and drawing, with
Rich's turning it into bytes. CPU time of this process, so that a busy machine does not matter; the share is
of one core. The network and the terminal's own work are not in it.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.screen import Screen

from farm.live.render import render
from farm.live.snapshot import Memo, Wants, fetch
from farm.live.view import Pane, View
from tests.edges.live_farm import FakeFarm, a_job, a_node, an_event

REFRESHES: int = 4
"""A second."""
MOVING: int = 100
"""Jobs of 500 that change between two answers: more than 100 nodes can work on at once is not likely."""
SHARE: float = 0.10
"""Of a core: the target."""


def cpu_ms(act: Callable[[], object], *, times: int = 30) -> float:
    """Median of `times` calls, in milliseconds of CPU time."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        act()
        spent.append((time.process_time() - began) * 1000)
    return median(spent)


def big_farm() -> FakeFarm:
    farm = FakeFarm()
    farm.jobs = [
        a_job(n, name=f"影_{n} " * 8, waiting="12 nodes: VRAM 24 GB < 31 GB" * 3) for n in range(500)
    ]
    farm.nodes = [a_node(f"node-{n:03d}") for n in range(100)]
    farm.events = [an_event(n) for n in range(50)]
    return farm


def as_sent(farm: FakeFarm) -> Callable[[str, Mapping[str, Any]], Any]:
    """Answers as they come over the wire: text, made objects anew each time; a fifth of the jobs moves on
    from one answer to the next."""
    kept: dict[tuple[str, int], bytes] = {}
    asked = 0

    def get(path: str, params: Mapping[str, Any]) -> Any:
        nonlocal asked
        asked += path == "/farm"
        key = (f"{path} {params}", asked % 2)
        if key not in kept:
            for job in farm.jobs[:MOVING]:
                job["counts"]["done"] = 80 + asked % 2
            kept[key] = json.dumps(farm.get(path, params)).encode()
        return json.loads(kept[key])

    return get


def shares() -> dict[str, float]:
    """Share of a core for each screen."""
    get = as_sent(big_farm())
    wants = Wants(job_id=7, task_id=7001)
    memo = Memo()
    snapshot = fetch(get, wants, memo=memo)
    fetch(get, wants, memo=memo)
    reading = cpu_ms(lambda: fetch(get, wants, memo=memo), times=20)
    print(f"read the answers: {reading:.1f} ms")
    found = {}
    for width, height in ((80, 24), (200, 50)):
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, height=height
        )
        views = {
            "overview": View(),
            "filtered": View(
                filters={Pane.JOBS: "state=active and running>0"}, sorts={Pane.JOBS: "-progress"}
            ),
            "tasks": View(focus=Pane.TASKS, job_id=7),
        }
        for name, view in views.items():

            def draw(width: int = width, height: int = height, view: View = view) -> None:
                picture = render(snapshot, width, height, colour=True, view=view)
                console.print(Screen(picture), end="")  # noqa: B023 - called within the loop

            drawing = cpu_ms(draw)
            share = REFRESHES * (reading + drawing) / 1000
            found[f"{name} {width}×{height}"] = share
            print(f"{name} {width}×{height}: {drawing:.1f} ms, {share:.1%} of a core at {REFRESHES} a second")
    return found


def main() -> int:
    worst = max(shares().values())
    print(f"the worst is {worst:.1%}; the target is {SHARE:.0%}")
    return 0 if worst < SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
