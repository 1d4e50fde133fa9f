"""`farm worker` with a session host that plays. Settings come from FARM_* variables.

Argument: the containment of the hosts; the best there is if it is left out. After it "real": session hosts
that do not play.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

from farm.settings import load_settings
from tests.workers.agents import MACHINE, fake_host_command
from workers import containment
from workers.containment import Containment
from workers.main import run_worker


def real_host_command(kind: Containment | None, address: Path) -> list[str]:
    return containment.host_command(sys.executable, kind, address=address)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    kind = Containment(sys.argv[1]) if len(sys.argv) > 1 else None
    is_real = "real" in sys.argv[2:]
    host_command = partial(real_host_command, kind) if is_real else partial(fake_host_command, kind=kind)
    sys.exit(run_worker(load_settings(), host_command=host_command, capabilities=MACHINE))
