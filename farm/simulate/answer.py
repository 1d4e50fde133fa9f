"""Questions to a simulated farm: other nodes, other weights, another policy, on the same worlds."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from farm.errors import UserError
from farm.flow import match
from farm.flow.recording import Recording
from farm.flow.weights import Weights
from farm.simulate.clock import Desk, Simulation
from farm.simulate.desks import BoardDesk, PlanDesk, PullDesk, StaticDesk
from farm.simulate.metrics import Figures, figures
from farm.simulate.world import Scenario, World, device_models

POLICIES = ("predictive", "fifo", "fitness", "tags", "sticky", "static", "oracle")


def desk_of(policy: str, weights: Weights | None = None) -> Desk:
    """The scheduler's side for a policy by name. Raises UserError."""
    makers: dict[str, Callable[[], Desk]] = {
        "predictive": lambda: BoardDesk(weights=weights),
        "oracle": lambda: BoardDesk(weights=weights, is_oracle=True),
        "fifo": lambda: PlanDesk(match.fifo),
        "fitness": lambda: PlanDesk(match.fitness),
        "tags": lambda: PullDesk("tags"),
        "sticky": lambda: PullDesk("sticky"),
        "static": StaticDesk,
    }
    if policy not in makers:
        raise UserError(f"no policy {policy!r}; there are: {', '.join(POLICIES)}")
    return makers[policy]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One line of the answer: a farm under a policy."""

    name: str
    scenario: Scenario
    policy: str = "predictive"
    weights: Weights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    question: Question
    runs: tuple[Figures, ...]
    """One for each seed."""

    def mean(self, figure: str) -> float:
        return statistics.fmean(getattr(run, figure) for run in self.runs)


def ask(questions: Sequence[Question], seeds: Sequence[int]) -> list[Answer]:
    """Play every question on every seed: lines differ in what was asked, never in the jobs drawn."""
    for question in questions:
        desk_of(question.policy, question.weights)
    return [
        Answer(
            question=question,
            runs=tuple(
                figures(
                    Simulation(
                        World(replace(question.scenario, seed=seed)),
                        desk_of(question.policy, question.weights),
                    ).run()
                )
                for seed in seeds
            ),
        )
        for question in questions
    ]


def farm_of(text: str, recording: Recording | None = None) -> dict[str, int]:
    """ "L40S=4,T4=10" -> counts by device model; a recorded farm's own are known too. Raises UserError."""
    known = device_models(recording)
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        name = name.strip()
        if name not in known:
            raise UserError(f"no device model {name!r} is known; there are: {', '.join(known)}")
        if not number.strip().isdigit() or not 0 < int(number) <= 10_000:
            raise UserError(f"say how many {name}, such as {name}=4; not {number.strip()!r}")
        counts[name] = counts.get(name, 0) + int(number)
    return counts


def with_more(scenario: Scenario, more: Mapping[str, int]) -> Scenario:
    """The same jobs on a larger farm: the rate of arrivals stays that of the farm before."""
    return replace(scenario, farm=dict(scenario.farm), more=dict(more))


def scenario_of(path: Path) -> Scenario:
    """A scenario from a TOML file of its fields, or from what `farm record` wrote (JSON).

    Raises UserError that names what is wrong.
    """
    if path.suffix == ".json":
        try:
            return Scenario.recorded(TypeAdapter(Recording).validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the recording {path}: {error}") from error
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    known = {f.name for f in fields(Scenario)} - {"recording"}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise UserError(f"unknown key {key!r} in {path}; keys are: {', '.join(sorted(known))}")
        if key in ("farm", "more"):
            value = farm_of(",".join(f"{name}={count}" for name, count in dict(value).items()))
        values[key] = _tuples(value) if isinstance(value, list) else value
    try:
        scenario = Scenario(**values)
        World(replace(scenario, hours=min(scenario.hours, 0.05), batch_jobs=min(scenario.batch_jobs, 1)))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is no scenario: {error}") from error
    return scenario


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def svg(answers: Sequence[Answer]) -> str:
    """Turnaround (bar) and spread (line through it, one SD) of each line, as a drawing of its own."""
    width, row, left = 720, 46, 210
    most = max(max(a.mean("turnaround_s") for a in answers), 1.0)
    most_sd = max(max(a.mean("sd_s") for a in answers), 1.0)
    height = row * len(answers) + 60
    room = (width - left - 90) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="{left}" y="24" font-weight="bold">mean job turnaround</text>',
        f'<text x="{left + room + 60:.0f}" y="24" font-weight="bold">spread of completion (SD)</text>',
    ]
    for at, answer in enumerate(answers):
        y = 44 + at * row
        name = escape(answer.question.name[:30])
        turnaround, sd = answer.mean("turnaround_s"), answer.mean("sd_s")
        parts += [
            f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{name}</text>',
            f'<rect x="{left}" y="{y}" width="{room * turnaround / most:.1f}" height="22" fill="#3b7dd8"/>',
            f'<text x="{left + room * turnaround / most + 6:.1f}" y="{y + 16}">{turnaround:,.0f} s</text>',
            f'<rect x="{left + room + 60:.1f}" y="{y}" width="{(room - 60) * sd / most_sd:.1f}" height="22" '
            'fill="#d88a3b"/>',
            f'<text x="{left + room + 66 + (room - 60) * sd / most_sd:.1f}" y="{y + 16}">{sd:.0f} s</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
