"""A server that is asked to stop while it answers: what it has taken it answers, and keeps."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]

AT_ONCE = 12
TEMPLATE = {
    "specificationVersion": "jobtemplate-2023-09",
    "name": "t",
    "steps": [{"name": "run", "script": {"actions": {"onRun": {"command": "true"}}}}],
}


def test_a_server_is_drained_with_requests_in_flight(farm: BreakableFarm) -> None:
    """Each of them is answered whole; who comes later finds no server, and asks again with the same key."""
    farm.failpoints["server"] = "desk.submitting=sleep(2)"
    farm.start_all(agents=1)
    token = json.loads((farm.folder / "server" / "client.json").read_text())["token"]

    def submit(number: int) -> Any:
        return httpx.post(
            f"http://127.0.0.1:{farm.port}/api/v1/jobs",
            json={"name": f"job {number}", "template": TEMPLATE},
            headers={"Authorization": f"Bearer {token}", "Idempotency-Key": f"k{number}"},
            timeout=60,
        )

    with ThreadPoolExecutor(AT_ONCE) as clients:
        asked = [clients.submit(submit, number) for number in range(AT_ONCE)]
        wait_until(lambda: "desk.submitting" in farm.log("server"), "requests in flight")
        farm.kill("server", signal.SIGTERM)
        answered = []
        for number, each in enumerate(asked):
            try:
                assert each.result().status_code == 201, each.result().text
                answered.append(number)
            except httpx.ConnectError:
                continue  # not taken any more: that is no half answer
    assert answered, "none was in flight"
    assert farm.processes["server"].wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        submit(0)
    del farm.failpoints["server"]
    farm.start_again("server")
    wait_until(lambda: farm.try_get("/jobs") is not None, "the server again", timeout_s=60)
    kept = {item["job"]["name"] for item in farm.get("/jobs")["items"]}
    assert kept == {f"job {number}" for number in answered}
    assert [submit(number).status_code for number in range(AT_ONCE)] == [
        200 if number in answered else 201 for number in range(AT_ONCE)
    ]
    assert len(farm.get("/jobs")["items"]) == AT_ONCE
