"""A session host's process, as the agent's loop sees it."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.host_driver import until
from workers.hosts import HostProcess, SessionHost


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def test_a_host_whose_output_and_process_end_in_one_turn_reads_nobody_elses_descriptor(
    selector: selectors.BaseSelector, tmp_path: Path
) -> None:
    dead: list[SessionHost] = []

    def said(_host: SessionHost, message: Any) -> None:
        raise AssertionError(message)

    host = HostProcess(1, ["true"], {"PATH": os.environ["PATH"]}, tmp_path, selector, said, dead.append)
    incoming, _pidfd = selector.get_map()
    assert isinstance(incoming, int)
    ready = until(lambda: len(found := selector.select(0)) == 2 and found, "its output and its process end")
    other = tmp_path / "other"
    other.write_text("a line of somebody else's\n")
    with other.open() as file:
        for key in sorted((key for key, _ in ready), key=lambda key: key.fd != incoming):
            key.data()
            if key.fd == incoming:
                os.dup2(file.fileno(), incoming)  # as any other thread may get this number now
    assert dead == [host]
    assert os.lseek(incoming, 0, os.SEEK_CUR) == 0
    os.close(incoming)
    assert host.reap(10) == "exit status 0"
