"""Four real agents on four fake GPU nodes with RabbitMQ: routing, isolation, MIG, a lost GPU, VRAM, heat."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from farm.flow.demand import PROBE_ATTRIBUTE
from tests.e2e.conftest import NewServices
from tests.e2e.farm_under_test import FarmUnderTest
from tests.gpu.fakes import FakeDriver, board, build, busy, node
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e]

NODES = {
    "agent0": node(board("rtx4090", 0, "mix"), board("rtx3090", 1, "mix")),
    "agent1": node(board("a100", 0, "mig", mig=("3g.40gb", "3g.40gb"))),
    "agent2": node(board("h100", 0, "pair"), board("h100", 1, "pair")),
    "agent3": node(board("l40s", 0, "lone")),
}
POOLS = {"agent0": "mix", "agent1": "mig", "agent2": "pair", "agent3": "lone", "agent4": "broken"}
HURRY = {"FARM_HEARTBEAT_S": "0.5", "FARM_KILL_GRACE_S": "0.2"}


@dataclass
class GpuFarm(FarmUnderTest):
    drivers: dict[str, FakeDriver] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        environment = super().environment(name)
        if name in self.drivers:
            environment |= self.drivers[name].environment
            environment["FARM_POOLS"] = POOLS[name]
            # Our scripts use no GPU; one node looks.
            environment["FARM_GPU_USE_CHECK_S"] = "1" if name == "agent3" else "0"
        return environment

    def device_loads(self, agent: str) -> dict[str, Any]:
        """Loads of the agent's devices by id."""
        answer = self.get(f"/nodes/{agent}-{self.port}")
        return {load["device_id"]: load for load in answer["loads"]}

    def submit_script(
        self,
        name: str,
        script: str,
        *,
        tasks: int = 1,
        vram_mib: int = 1,
        retries: int = 2,
        probe: bool = False,
        tag: str = "",
    ) -> int:
        """A job in the pool `name` whose tasks run the shell script on a GPU each."""
        template: dict[str, Any] = {
            "specificationVersion": "jobtemplate-2023-09",
            "name": name,
            "steps": [
                {
                    "name": "Work",
                    "parameterSpace": {
                        "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": f"1-{tasks}"}]
                    },
                    "hostRequirements": {
                        "amounts": [
                            {"name": "amount.worker.gpu", "min": 1},
                            {"name": "amount.worker.gpu.memory", "min": vram_mib},
                        ]
                    },
                    "script": {"actions": {"onRun": {"command": "sh", "args": ["-c", script]}}},
                }
            ],
        }
        if probe:
            (work,) = template["steps"]
            first = copy.deepcopy(work) | {"name": "Probe"}
            first["hostRequirements"]["attributes"] = [{"name": PROBE_ATTRIBUTE, "anyOf": ["yes"]}]
            work["dependencies"] = [{"dependsOn": "Probe"}]
            template["steps"].append(first)
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(template))
        pool = [] if name == "any" else ["--pool", name]
        profile = ["--profile", tag] if tag else []
        return self.submit(str(path), "--retries", str(retries), *pool, *profile)

    def running_on(self, job_id: int) -> list[str]:
        return sorted(a["device_id"] for a in self.attempts(job_id) if a["state"] == "running")

    def log_of(self, attempt_id: str) -> str:
        told = self.get(f"/attempts/{attempt_id}/log")
        return "".join(chunk["text"] for chunk in told["chunks"])


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, lasting_services: NewServices) -> Iterator[GpuFarm]:
    folder = tmp_path_factory.mktemp("gpus")
    library = build(tmp_path_factory.mktemp("driver"))
    drivers = {
        name: FakeDriver(library=library, path=folder / f"{name}.nvml", fixture=fixture)
        for name, fixture in NODES.items()
    }
    farm = GpuFarm(folder, *lasting_services(), extra=HURRY, drivers=drivers)
    try:
        farm.start_all(agents=len(NODES))
        yield farm
    finally:
        farm.stop_all()


def gate(farm: GpuFarm, name: str) -> tuple[Path, str]:
    """A file, and a script that waits for it."""
    path = farm.folder / f"{name}.open"
    return (
        path,
        f'echo "seen=$CUDA_VISIBLE_DEVICES"; until [ -e {path} ]; do sleep 0.1; done',
    )


def test_every_node_tells_its_devices(farm: GpuFarm) -> None:
    told = {n["id"].partition("-")[0]: n["capabilities"]["devices"] for n in farm.get("/nodes")["items"]}
    kinds = {name: [device["kind"] for device in devices] for name, devices in told.items()}
    assert kinds == {
        "agent0": ["cpu", "gpu", "gpu"],
        "agent1": ["cpu", "mig", "mig"],
        "agent2": ["cpu", "gpu", "gpu"],
        "agent3": ["cpu", "gpu"],
    }
    shown = farm.farm("node", f"agent3-{farm.port}")
    for text in ("NVIDIA L40S", "91.6 TFLOPS", "864 GB/s", "FLOP/B", "compute", "GPU-lone-0000", "catalogue"):
        assert text in shown
    listed = farm.farm("nodes")
    assert "A100" in listed
    assert "bandwidth" in listed


@pytest.mark.parametrize(
    ("tag", "pools", "devices"),
    [
        ("compute", "mix,mig", {"GPU-mix-0000"}),
        ("bandwidth", "mix,pair", {"GPU-pair-0000", "GPU-pair-0001"}),
    ],
)
def test_a_first_task_goes_by_what_the_devices_can_do(
    farm: GpuFarm, tag: str, pools: str, devices: set[str]
) -> None:
    job_id = farm.submit_script(pools, "true", tag=tag)
    assert farm.wait_for_job(job_id) == "done"
    (attempt,) = farm.attempts(job_id)
    assert attempt["device_id"] in devices, attempt


def _has_said(farm: GpuFarm, attempt_id: str, text: str) -> bool:
    return text in farm.log_of(attempt_id)


def test_a_task_goes_only_where_its_vram_is_and_sees_only_its_device(farm: GpuFarm) -> None:
    job_id = farm.submit_script(
        "any", 'echo "seen=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER"', tasks=4, vram_mib=60_000
    )
    assert farm.wait_for_job(job_id) == "done"
    attempts = farm.attempts(job_id)
    assert {a["device_id"] for a in attempts} <= {"GPU-pair-0000", "GPU-pair-0001"}
    for attempt in attempts:
        said = f"seen={attempt['device_id']} order=PCI_BUS_ID"
        wait_until(partial(_has_said, farm, attempt["id"], said), "the child's variables")


def test_mig_instances_are_slots_of_their_own(farm: GpuFarm) -> None:
    path, script = gate(farm, "mig")
    job_id = farm.submit_script("mig", script, tasks=3)
    wait_until(lambda: farm.running_on(job_id) == ["MIG-mig-0000-0", "MIG-mig-0000-1"], "both instances")
    path.touch()
    assert farm.wait_for_job(job_id) == "done"
    for attempt in farm.attempts(job_id):
        assert f"seen={attempt['device_id']}" in farm.log_of(attempt["id"])
    loads = farm.device_loads("agent1")
    assert loads["MIG-mig-0000-0"]["utilisation"] is None, "an instance cannot say: never 0"


def test_a_throttled_gpu_loses_its_work_to_a_slower_one_that_is_well(farm: GpuFarm) -> None:
    driver = farm.drivers["agent0"]
    first = farm.submit_script("mix", "true")
    farm.wait_for_job(first)
    assert farm.attempts(first)[0]["device_id"] == "GPU-mix-0000"
    driver.change(0, reasons=0x40, sm_mhz_now=600, temperature=93)
    wait_until(lambda: farm.device_loads("agent0")["GPU-mix-0000"]["complaint"], "the throttling is told")
    second = farm.submit_script("mix", "true")
    farm.wait_for_job(second)
    assert farm.attempts(second)[0]["device_id"] == "GPU-mix-0001"
    assert "thermal" in farm.farm("nodes")
    assert "device-degraded" in {
        event["kind"] for event in farm.get("/events", newest="true", limit=500)["items"]
    }


def test_a_card_that_a_foreign_process_fills_is_not_given_more(farm: GpuFarm) -> None:
    driver = farm.drivers["agent3"]
    driver.change(0, used_mib=44_000)
    wait_until(lambda: farm.device_loads("agent3")["GPU-lone-0000"]["vram_used_mib"] == 44_000, "it is full")
    job_id = farm.submit_script("lone", "true", vram_mib=8_000)
    wait_until(lambda: "free VRAM" in farm.farm("why", str(job_id)), "the reason")
    assert farm.attempts(job_id) == []
    driver.change(0, used_mib=500)
    assert farm.wait_for_job(job_id) == "done"


def test_what_a_job_used_is_summed_up(farm: GpuFarm) -> None:
    driver = farm.drivers["agent3"]
    path, script = gate(farm, "lone")
    job_id = farm.submit_script("lone", script)
    wait_until(lambda: farm.running_on(job_id), "it runs")
    driver.change(0, **busy(board("l40s"), 97, 20, used_mib=9_000))
    wait_until(lambda: farm.device_loads("agent3")["GPU-lone-0000"]["utilisation"] == 0.97, "its load")
    wait_until(lambda: farm.device_loads("agent3")["GPU-lone-0000"]["vram_used_mib"] == 9_000, "its memory")
    seen = farm.device_loads("agent3")["GPU-lone-0000"]["power_w"]
    assert seen > 200
    path.touch()
    assert farm.wait_for_job(job_id) == "done"
    usage = farm.get(f"/jobs/{job_id}/usage")
    assert (usage["attempts"], usage["models"], usage["vram_peak_mib"]) == (1, ["NVIDIA L40S"], 9_000)
    assert usage["gpu_hours"] > 0
    assert usage["energy_kwh"] > 0
    shown = farm.farm("job", str(job_id), "--usage")
    assert "kWh" in shown
    assert "GPU-hours" in shown
    driver.change(0, busy=0, memory_busy=0, used_mib=1)


def probed(farm: GpuFarm, hold_s: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a probe that runs this long finds, and its job's steps afterwards."""
    path, script = gate(farm, f"probe{hold_s}")
    job_id = farm.submit_script("lone", script, probe=True)
    (attempt,) = wait_until(
        lambda: [a for a in farm.attempts(job_id) if a["state"] == "running"], "the probe runs"
    )
    threading.Event().wait(hold_s)  # samples take their time
    assert [task["state"] for task in farm.get(f"/jobs/{job_id}/tasks")["items"]] == ["waiting", "running"]
    path.touch()
    assert farm.wait_for_job(job_id) == "done"
    found: dict[str, Any] = farm.get(f"/attempts/{attempt['id']}")["probe"]
    return found, farm.get(f"/jobs/{job_id}")["job"]["steps"]


def test_a_probe_step_teaches_the_steps_that_depend_on_it(farm: GpuFarm) -> None:
    driver = farm.drivers["agent3"]
    driver.change(0, **busy(board("l40s"), 97, 20, used_mib=5_000))
    try:
        wait_until(lambda: farm.device_loads("agent3")["GPU-lone-0000"]["utilisation"] == 0.97, "its load")
        for hold_s in (4.0, 10.0, 15.0):  # a machine at its limits takes few samples
            told, steps = probed(farm, hold_s)
            if told["tag"] != "unknown":
                break
    finally:
        driver.change(0, busy=0, memory_busy=0, used_mib=1)
    assert (told["device_model"], told["tier"]) == ("NVIDIA L40S", "busy-time"), told
    assert (told["tag"], told["confidence"]) == ("compute", 0.7)
    for step in steps:
        assert (step["profile"]["source"], step["profile"]["device_model"]) == ("probe", "NVIDIA L40S")


def test_a_task_that_asked_for_a_gpu_and_rendered_on_the_cpu_fails_and_says_so(farm: GpuFarm) -> None:
    job_id = farm.submit_script("lone", "sleep 5", retries=0)
    assert farm.wait_for_job(job_id) == "failed"
    (attempt,) = farm.attempts(job_id)
    assert (attempt["outcome"], attempt["exit_code"]) == ("job-error", 0)
    assert "asked for a GPU and rendered on the CPU" in attempt["reason"]


@pytest.mark.parametrize(("mode", "told"), [(2, "PROHIBITED"), (3, "EXCLUSIVE, and process 7")])
def test_a_gpu_whose_compute_mode_shuts_us_out_is_given_nothing(farm: GpuFarm, mode: int, told: str) -> None:
    driver = farm.drivers["agent3"]
    driver.change(0, compute_mode=mode, process={0: {"pid": 7, "mib": 200}})
    try:
        wait_until(
            lambda: told in farm.device_loads("agent3")["GPU-lone-0000"]["closed"],
            "it is closed",
            timeout_s=60,
        )
        job_id = farm.submit_script("lone", "true")
        wait_until(lambda: told in farm.farm("why", str(job_id)), "the reason")
        assert farm.attempts(job_id) == []
    finally:
        driver.change(0, compute_mode=0, process={0: {"pid": None}})
    assert farm.wait_for_job(job_id) == "done"


def test_a_gpu_lost_in_mid_render_is_drained_and_its_task_migrates(farm: GpuFarm) -> None:
    path, script = gate(farm, "pair")
    job_id = farm.submit_script("pair", script)
    (lost,) = wait_until(lambda: farm.running_on(job_id), "it runs")
    farm.drivers["agent2"].change(int(lost[-1]), lost=1)
    well = "GPU-pair-0001" if lost.endswith("0") else "GPU-pair-0000"
    wait_until(lambda: farm.running_on(job_id) == [well], "it runs on the other one")
    path.touch()
    assert farm.wait_for_job(job_id) == "done"
    first = next(a for a in farm.attempts(job_id) if a["device_id"] == lost)
    assert first["outcome"] == "node-fault"
    assert "fallen off the bus" in first["reason"]
    assert "fallen off the bus" in farm.device_loads("agent2")[lost]["fault"]
    assert f"agent2-{farm.port}" in farm.nodes_online(), "the node goes on with the rest"
    assert "lost" in farm.farm("nodes")
    later = farm.submit_script("pair", "true", tasks=3)
    assert farm.wait_for_job(later) == "done"
    assert {a["device_id"] for a in farm.attempts(later)} == {well}


def test_a_gpu_that_is_cut_anew_brings_its_new_instances(farm: GpuFarm) -> None:
    driver = farm.drivers["agent1"]
    cut = driver.fixture["gpu"][0]["mig"]
    new = {**cut[1], "uuid": "MIG-mig-anew"}
    driver.change(0, mig={0: cut[0], 1: {**cut[1], "uuid": None}, 2: new})

    def ids() -> list[str]:
        answer = farm.get(f"/nodes/agent1-{farm.port}")
        return [device["id"] for device in answer["capabilities"]["devices"]]

    wait_until(lambda: ids() == ["cpu", "MIG-mig-0000-0", "MIG-mig-anew"], "the new instance")
    job_id = farm.submit_script("mig", "sleep 1", tasks=2)
    assert farm.wait_for_job(job_id) == "done"
    assert {a["device_id"] for a in farm.attempts(job_id)} == {"MIG-mig-0000-0", "MIG-mig-anew"}


def test_a_node_whose_driver_needs_a_reboot_takes_no_work_and_says_so(farm: GpuFarm) -> None:
    fixture = node(board("l40s"), init={"error": "LIB_RM_VERSION_MISMATCH"})
    library = farm.drivers["agent0"].library
    farm.drivers["agent4"] = FakeDriver(library=library, path=farm.folder / "agent4.nvml", fixture=fixture)
    farm.start_agent(4)

    def state() -> str:
        known = {n["id"]: n for n in farm.get("/nodes")["items"]}
        answer = known.get(f"agent4-{farm.port}")
        return f"{answer['state']}: {answer['reason']}" if answer else ""

    wait_until(lambda: state().startswith("draining") and "reboot" in state(), "the node drains itself")
    assert "reboot" in farm.farm("nodes")
