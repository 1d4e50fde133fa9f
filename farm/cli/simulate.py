"""`farm simulate`: what if the farm had other nodes, weights, or another policy?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from farm.cli import show
from farm.cli.client import Client
from farm.cli.listing import Listing, Wanted
from farm.cli.show import Column, cell
from farm.errors import UserError
from farm.flow.filters import Field, Kind, Table, table
from farm.flow.weights import Weights
from farm.simulate.answer import Answer, Question, ask, farm_of, scenario_of, svg, with_more
from farm.simulate.world import Scenario
from farm.text import duration, plural


def _mean(figure: str) -> Callable[[Answer], float]:
    return lambda answer: answer.mean(figure)


FIELDS: Final[Table[Answer]] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda answer: answer.question.name, help="farm and policy"),
        Field(name="policy", kind=Kind.TEXT, of=lambda answer: answer.question.policy, help="the policy"),
        Field(name="turnaround", kind=Kind.DURATION, of=_mean("turnaround_s"), help="of a job"),
        Field(name="sd", kind=Kind.DURATION, of=_mean("sd_s"), help="spread of frames' completion"),
        Field(name="makespan", kind=Kind.DURATION, of=_mean("makespan_s"), help="first start to last end"),
        Field(name="gpu-hours", kind=Kind.NUMBER, of=_mean("gpu_hours"), help="of devices at work"),
        Field(name="kwh", kind=Kind.NUMBER, of=_mean("kwh"), help="energy"),
    )
)


def record(client: Client, file: Path, *, hours: float, is_json: bool) -> None:
    if file.suffix != ".json":
        raise UserError(f"a recording is JSON: name the file {file.name}.json")
    answer = client.get("/recording", hours=hours)
    try:
        file.write_text(json.dumps(answer, separators=(",", ":")), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error}") from error
    steps, tasks = len(answer["steps"]), sum(len(step["content"]) for step in answer["steps"])
    if is_json:
        show.data({"path": str(file), "steps": steps, "tasks": tasks})
    else:
        show.note(f"{plural(steps, 'step')} with {plural(tasks, 'task')} recorded in {file}")


def simulate(
    *,
    file: Path | None,
    farm: str | None,
    add: Sequence[str],
    policies: Sequence[str],
    load: float | None,
    hours: float | None,
    jobs: int | None,
    weights: Sequence[str],
    has_faults: bool,
    seeds: int,
    drawing: Path | None,
    wanted: Wanted,
) -> None:
    listing = Listing(Answer, FIELDS, "answers", wanted)
    scenario = scenario_of(file) if file is not None else Scenario()
    if scenario.recording is not None:
        _check_recorded(load=load, hours=hours, jobs=jobs, seeds=seeds if not has_faults else 1)
    if farm is not None:
        scenario = replace(scenario, farm=farm_of(farm, scenario.recording))
    scenario = replace(
        scenario,
        load=scenario.load if load is None else load,
        hours=scenario.hours if hours is None else hours,
        batch_jobs=scenario.batch_jobs if jobs is None else jobs,
    )
    if has_faults:
        scenario = replace(scenario, hung=0.003, slow_per_hour=0.15, mean_hours_to_failure=30.0)
    table = Weights.from_table(_weights(weights)) if weights else None
    questions = [
        Question(name=policy, scenario=scenario, policy=policy, weights=table) for policy in policies
    ]
    questions += [
        Question(
            name=f"{policies[0]} + {each}",
            scenario=with_more(scenario, farm_of(each, scenario.recording)),
            policy=policies[0],
            weights=table,
        )
        for each in add
    ]
    answers = ask(questions, range(seeds))
    if drawing is not None:
        try:
            drawing.write_text(svg(answers), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {drawing}: {error}") from error
    listing.put(
        ((answer, _as_json(answer)) for answer in answers),
        [
            Column("Farm and policy", shrinks=True),
            *(
                Column(title, is_right=True)
                for title in ("Turnaround", "Spread SD", "Makespan", "GPU hours", "kWh")
            ),
        ],
        lambda answer: [cell(text) for text in _row(answer, answers[0])],
        empty="",
    )
    if wanted.is_json:
        return
    first = answers[0].runs[0]
    bound_s = answers[0].mean("bound_gpu_hours") * 3600 / sum(scenario.farm.values())
    show.note(
        f"{plural(seeds, 'seed')}; seed 0: {plural(first.jobs, 'job')}, {first.frames:,} frames; no schedule "
        f"drains them sooner than {duration(bound_s)} on the first farm, were all there at once"
    )


def _as_json(answer: Answer) -> dict[str, Any]:
    runs = [asdict(run) for run in answer.runs]
    return {"name": answer.question.name, "policy": answer.question.policy, "seeds": runs}


def _check_recorded(*, load: float | None, hours: float | None, jobs: int | None, seeds: int) -> None:
    given = {"--load": load, "--hours": hours, "--jobs": jobs, "--seeds": None if seeds == 1 else seeds}
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise UserError(f"{wrong[0]} has no meaning for a recording: its jobs are played as they came")


def _row(answer: Answer, first: Answer) -> list[str]:
    def told(figure: str, text: str) -> str:
        if answer is first or not first.mean(figure):
            return text
        return f"{text} ({answer.mean(figure) / first.mean(figure) - 1:+.0%})"

    return [
        answer.question.name,
        *(told(figure, duration(answer.mean(figure))) for figure in ("turnaround_s", "sd_s", "makespan_s")),
        f"{answer.mean('gpu_hours'):.1f}",
        f"{answer.mean('kwh'):.1f}",
    ]


def _weights(pairs: Sequence[str]) -> dict[str, bool | float | str]:
    table: dict[str, bool | float | str] = {}
    for pair in pairs:
        key, is_given, text = pair.partition("=")
        if not is_given:
            raise UserError(f"a weight is given as NAME=VALUE, not {pair!r}")
        try:
            table[key] = float(text)
        except ValueError:
            table[key] = {"true": True, "false": False}.get(text, text)
    return table
