"""`farm worker` with a session host that plays. Settings come from FARM_* variables."""

from __future__ import annotations

import logging
import sys

from farm.settings import load_settings
from tests.workers.agents import MACHINE, fake_host_command
from workers.main import run_worker

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.exit(run_worker(load_settings(), host_command=fake_host_command, capabilities=MACHINE))
