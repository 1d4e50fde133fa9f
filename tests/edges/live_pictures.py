"""Draws the live view's pictures anew that tests compare with: `python -m tests.edges.live_pictures`."""

from __future__ import annotations

from farm.live.render import render
from tests.edges.test_live_render import SNAPSHOTS, VIEWS, a_snapshot


def main() -> None:
    for width, height in ((80, 24), (200, 50)):
        for name, view in VIEWS.items():
            picture = render(a_snapshot(), width, height, colour=False, view=view).plain
            (SNAPSHOTS / f"live-{name}-{width}x{height}.txt").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
