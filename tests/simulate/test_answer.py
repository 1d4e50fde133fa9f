"""What-if questions: the same jobs on other farms, told as a table, as JSON and as a drawing."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farm.cli.listing import Wanted
from farm.cli.simulate import simulate
from farm.errors import UserError
from farm.flow.recording import RecordedDevice, Recording
from farm.http import examples
from farm.model.machines import DeviceKind
from farm.simulate.answer import Question, ask, desk_of, farm_of, scenario_of, svg, with_more
from farm.simulate.clock import Simulation
from farm.simulate.world import Scenario, World

SMALL = Scenario(seed=1, farm={"T4": 4, "RTX 4090": 2}, batch_jobs=4, frames=(10, 20))


@pytest.mark.parametrize("more", [{"RTX 4090": 4}, {"H100": 1}])
def test_more_nodes_change_neither_jobs_nor_the_nodes_before(more: dict[str, int]) -> None:
    arrivals = replace(SMALL, batch_jobs=0, hours=0.5, hung=0.1, slow_per_hour=1.0)
    plain, larger = World(arrivals), World(with_more(arrivals, more))
    assert plain.jobs == larger.jobs
    assert (plain.content == larger.content).all()
    assert (plain.hangs == larger.hangs).all()
    assert plain.seconds == pytest.approx(larger.seconds[:, : len(plain.models)])
    assert plain.slow == larger.slow[: len(plain.nodes)]
    assert len(larger.nodes) == len(plain.nodes) + sum(more.values())
    assert (plain.node_factor == larger.node_factor[: len(plain.nodes)]).all()


def test_more_nodes_help_and_the_answer_is_drawn() -> None:
    questions = [
        Question(name="as it is", scenario=SMALL),
        Question(name="<four more>", scenario=with_more(SMALL, {"RTX 4090": 4})),
    ]
    now, larger = ask(questions, range(2))
    assert larger.mean("makespan_s") < 0.8 * now.mean("makespan_s")
    root = xml.etree.ElementTree.fromstring(svg([now, larger]))
    assert "<four more>" in [element.text for element in root]


def test_a_farm_is_written_as_counts() -> None:
    assert farm_of("T4=3, RTX 4090=2,T4=1") == {"T4": 4, "RTX 4090": 2}


@pytest.mark.parametrize("text", ["T5=1", "T4", "T4=0", "T4=x", "T4=-1", ""])
def test_a_farm_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(UserError, match=r"T4|device model"):
        farm_of(text)


def test_a_scenario_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text('seed = 4\nload = 0.5\nframes = [5, 9]\n[farm]\n"RTX 4090" = 2\n')
    assert scenario_of(path) == Scenario(seed=4, load=0.5, frames=(5, 9), farm={"RTX 4090": 2})
    path.write_text("lod = 0.5\n")
    with pytest.raises(UserError, match="'lod'"):
        scenario_of(path)
    path.write_text("load = 0.5\nframes = 3\n")
    with pytest.raises(UserError, match="no scenario"):
        scenario_of(path)
    with pytest.raises(UserError, match="cannot read"):
        scenario_of(tmp_path / "none.toml")


def test_the_command_prints_a_line_for_each_farm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    drawing = tmp_path / "what-if.svg"
    simulate(
        file=None,
        farm="T4=4,A100=1",
        add=["A100=2"],
        policies=["predictive", "fifo"],
        load=None,
        hours=None,
        jobs=3,
        weights=["window=0.9"],
        has_faults=False,
        seeds=1,
        drawing=drawing,
        wanted=Wanted(),
    )
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines[1:4], ("predictive ", "fifo ", "predictive + A100=2 "), strict=True):
        assert line.startswith(name)
    assert drawing.read_text().startswith("<svg")


def test_an_unknown_policy_or_weight_is_named() -> None:
    with pytest.raises(UserError, match="'best'"):
        ask([Question(name="x", scenario=SMALL, policy="best")], [0])


def test_simulated_seconds_do_not_depend_on_the_order_of_questions() -> None:
    first = ask([Question(name="a", scenario=SMALL), Question(name="b", scenario=SMALL, policy="fifo")], [3])
    turned = ask([Question(name="b", scenario=SMALL, policy="fifo"), Question(name="a", scenario=SMALL)], [3])
    assert first[0].runs == turned[1].runs
    assert np.isclose(first[1].mean("makespan_s"), turned[0].mean("makespan_s"))


RECORDING = examples.RECORDING
SECONDS = {"NVIDIA GeForce RTX 4090": 25.0}


def _recording(tmp_path: Path, recording: Recording = RECORDING) -> Path:
    path = tmp_path / "night.json"
    path.write_text(json.dumps(examples.shown(recording)))
    return path


def test_a_recording_is_played_as_it_was(tmp_path: Path) -> None:
    scenario = scenario_of(_recording(tmp_path))
    assert scenario == Scenario.recorded(RECORDING)
    (answer,) = ask([Question(name="night", scenario=scenario, policy="fifo")], [0])
    (run,) = answer.runs
    (step,) = RECORDING.steps
    assert (run.jobs, run.frames) == (1, len(step.content))
    slowest = max(step.content) * step.seconds["NVIDIA GeForce RTX 4090"] + step.load_s
    assert step.at_s > 0
    assert run.makespan_s == pytest.approx(slowest, rel=1e-6), "the quiet hours before the job don't count"


def test_devices_that_the_farm_did_not_have_are_judged_by_the_learnt_share(tmp_path: Path) -> None:
    scenario = with_more(scenario_of(_recording(tmp_path)), {"T4": 2})
    world = World(scenario)
    (on_4090, on_t4) = world.seconds[0]
    assert on_4090 == 25.0
    assert on_t4 > 2 * on_4090
    assert (world.node_model == 1).sum() == 2


def test_work_for_cpus_is_played_on_cpus_only(tmp_path: Path) -> None:
    cpu = RecordedDevice(model="EPYC", kind=DeviceKind.CPU, slots=3, pools=("sim",))
    step = replace(RECORDING.steps[0], gpus=0, vram_mib=0, pool="sim", seconds={"EPYC": 9.0, **SECONDS})
    mixed = replace(RECORDING, devices=(*RECORDING.devices, cpu), steps=(*RECORDING.steps, step))
    simulation = Simulation(World(Scenario.recorded(mixed)), desk_of("predictive")).run()
    kinds = [simulation.world.models[simulation.world.node_model[node]] for node in simulation.by_node]
    assert kinds == [*["NVIDIA GeForce RTX 4090"] * 3, *["EPYC"] * 3]


def test_a_step_that_no_simulated_device_can_run_is_named(tmp_path: Path) -> None:
    wide = replace(RECORDING, steps=(replace(RECORDING.steps[0], vram_mib=99_000),))
    with pytest.raises(UserError, match="shot_010/Render"):
        World(Scenario.recorded(wide))
    (tmp_path / "broken.json").write_text('{"hours": 1}')
    with pytest.raises(UserError, match=r"broken\.json"):
        scenario_of(tmp_path / "broken.json")
