"""Without a log for a while, where a line of it would be of no use or would be read as something else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_log() -> Iterator[None]:
    """Nothing in this process logs until the block ends; afterwards all is as it was."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
