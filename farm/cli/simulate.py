"""`farm simulate`: what if the farm had other nodes, weights, or another policy?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from farm.cli import show
from farm.cli.show import Column, cell
from farm.errors import UserError
from farm.flow.weights import Weights
from farm.simulate.answer import Answer, Question, ask, farm_of, scenario_of, svg, with_more
from farm.simulate.world import Scenario
from farm.text import duration, plural


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
    is_json: bool,
) -> None:
    scenario = scenario_of(file) if file is not None else Scenario()
    if farm is not None:
        scenario = replace(scenario, farm=farm_of(farm))
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
            scenario=with_more(scenario, farm_of(each)),
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
    if is_json:
        show.data(
            [
                {"name": a.question.name, "policy": a.question.policy, "seeds": [asdict(r) for r in a.runs]}
                for a in answers
            ]
        )
        return
    show.table(
        [
            Column("Farm and policy", shrinks=True),
            *(
                Column(title, is_right=True)
                for title in ("Turnaround", "p95", "Spread", "Makespan", "GPU hours", "kWh", "Wait")
            ),
        ],
        [[cell(text) for text in _row(answer, answers[0])] for answer in answers],
        empty="",
    )
    first = answers[0].runs[0]
    show.note(
        f"{plural(seeds, 'seed')}; seed 0: {plural(first.jobs, 'job')}, {first.frames:,} frames; no schedule "
        f"needs fewer than {answers[0].mean('bound_gpu_hours'):.1f} GPU hours; times are simulated"
    )


def _row(answer: Answer, first: Answer) -> list[str]:
    def told(figure: str, text: str) -> str:
        if answer is first or not first.mean(figure):
            return text
        return f"{text} ({answer.mean(figure) / first.mean(figure) - 1:+.0%})"

    return [
        answer.question.name,
        *(
            told(figure, duration(answer.mean(figure)))
            for figure in ("turnaround_s", "turnaround_p95_s", "sd_s", "makespan_s")
        ),
        told("gpu_hours", f"{answer.mean('gpu_hours'):.1f}"),
        told("kwh", f"{answer.mean('kwh'):.1f}"),
        told("wait_s", duration(answer.mean("wait_s"))),
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
