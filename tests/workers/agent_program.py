"""`farm worker` with a session host that plays. Settings come from FARM_* variables.

Argument: the containment of the hosts; the best there is if it is left out.
"""

from __future__ import annotations

import logging
import sys
from functools import partial

from farm.settings import load_settings
from tests.workers.agents import MACHINE, fake_host_command
from workers.containment import Containment
from workers.main import run_worker

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    host_command = partial(fake_host_command, *map(Containment, sys.argv[1:]))
    sys.exit(run_worker(load_settings(), host_command=host_command, capabilities=MACHINE))
