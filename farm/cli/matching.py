"""`farm profile`, `farm stats` and `farm capacity`: what matching has learnt, and what it is worth."""

from __future__ import annotations

from typing import Any

from farm.cli import show
from farm.cli.answers import read
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, find_job
from farm.cli.show import Column, cell
from farm.cli.stalled import costs_told
from farm.control.detail_fields import STATS_FIELDS, TIME_FIELDS, StepTime
from farm.control.fields import MODEL_FIELDS
from farm.control.matching_views import MatchingView, ModelWorth, PolicySpread, ProfileView, StepProfile
from farm.flow.stats import Calibration, Spread, Within
from farm.model.work import Profile
from farm.text import duration, plural

_EARNS_NOTHING = 0.01
"""Of the dearest device model's price."""


def profile(client: Connected, text: str, wanted: Wanted) -> None:
    listing = Listing(StepTime, TIME_FIELDS, "times", wanted)
    connected = client()
    job_view, _ = find_job(connected, text)
    answer = connected.get(f"/jobs/{job_view.job.id}/profile")
    view = read(ProfileView, answer)
    times = (StepTime(step=step.step, time=time) for step in view.steps for time in step.times)
    if listing.put_chosen(times, empty="no times yet"):
        return
    if wanted.is_json:
        show.data(answer)
        return
    for step in view.steps:
        show.line(f"Step {show.shown(step.step, 60)}: {_told(step.learnt)}")
        show.facts(_evidence(step))
        if step.times:
            show.table(
                [
                    Column("Device model", shrinks=True),
                    Column("Runs", is_right=True),
                    Column("Half within", is_right=True),
                    Column("9 in 10 within", is_right=True),
                ],
                [
                    [
                        cell(t.model),
                        cell(t.runs or "–"),
                        cell(duration(t.median_s)),
                        cell(duration(t.upper_s)),
                    ]
                    for t in step.times
                ],
                empty="",
            )


def _evidence(step: StepProfile) -> list[tuple[str, str]]:
    told = [("declared", _told(step.declared)), ("learnt from", plural(step.runs, "run"))]
    if step.load_s is not None:
        told.append(("loads for", duration(step.load_s)))
    if step.vram_peak_mib is not None:
        told.append(("VRAM at most", f"{step.vram_peak_mib:,} MiB"))
    if step.spread is not None:
        told.append(("took", _spread(step.spread)))
    if step.within is not None:
        told.append(("devices alike", f"SD {duration(step.within.floor_sd_s)} would be left"))
    return told


def _told(profile: Profile) -> str:
    return (
        f"{profile.tag}, {profile.compute_share:.0%} arithmetic, "
        f"{profile.bandwidth_share:.0%} memory traffic "
        f"(confidence {profile.confidence:.0%}, from {profile.source})"
    )


def _spread(spread: Spread) -> str:
    return (
        f"{duration(spread.p50_s)} (half), {duration(spread.p95_s)} (95 of 100), "
        f"{duration(spread.p99_s)} (99 of 100); SD {duration(spread.sd_s)}, {spread.relative:.0%} of the mean"
    )


def _within(within: Within) -> str:
    return (
        f"SD {duration(within.sd_s)}, {within.relative:.0%} of the mean; with devices alike "
        f"{duration(within.floor_sd_s)} would be left"
    )


def _policy(told: PolicySpread) -> str:
    weights = ", ".join(f"{name} = {value}" for name, value in sorted(told.weights.items()))
    name = f"{told.policy}{f' ({weights})' if weights else ''}"
    return f"{name}: {_within(told.within) if told.within is not None else 'nothing done'}"


def _calibration(found: Calibration | None) -> str:
    if found is None:
        return "none of a second or longer to compare yet"
    return (
        f"{found.within_likely:.0%} took no longer than likely (50% is right), {found.within_worst:.0%} than "
        f"at worst (90%); the middle error is {found.median_error:.0%} ({duration(found.median_error_s)}), "
        f"of {found.count:,}"
    )


def stats(client: Connected, wanted: Wanted) -> None:
    listing = Listing(MatchingView, STATS_FIELDS, "stats", wanted)
    answer = client().get("/matching")
    view = read(MatchingView, answer)
    if listing.put_chosen((view,), empty=""):
        return
    if wanted.is_json:
        show.data(answer)
        return
    if view.spread is None or view.within is None:
        show.line("no task is done yet")
        return
    facts = [
        ("policy", view.policy),
        ("tasks looked at", f"{view.tasks:,}, of the jobs that changed last"),
        ("took", _spread(view.spread)),
        ("within a step", _within(view.within)),
    ]
    for name, told in zip(("since", "before"), view.policies, strict=False):
        if len(view.policies) > 1:
            facts.append((f"{name} the change", _policy(told)))
    facts += [
        ("predicted tasks", _calibration(view.predictions)),
        ("predicted ends", _calibration(view.etas)),
        ("moved", costs_told(view.moves)),
        ("waiting work", f"at least {duration(view.waiting_bound_s)} on the farm as it is"),
    ]
    show.facts(facts)
    for node in view.slow_nodes:
        show.note(f"{show.shown(node.node, 60)} takes {node.factor:.2f} times as long as others of its kind")


def capacity(client: Connected, wanted: Wanted) -> None:
    listing = Listing(ModelWorth, MODEL_FIELDS, "models", wanted)
    answer = client().get("/matching")
    found = list(listing.matching(answer["models"]))
    dearest = max((model.price for model, _ in found), default=0.0)

    def row(model: ModelWorth) -> list[Any]:
        is_earning = model.price > _EARNS_NOTHING * dearest
        saved = duration(model.one_more_saves_s) if is_earning else "nothing now"
        return [cell(model.model), cell(model.slots), cell(f"{model.slots * model.price:.0%}"), cell(saved)]

    columns = [
        Column("Device model", shrinks=True),
        Column("Slots", is_right=True),
        Column("Share of worth", is_right=True),
        Column("One more saves", is_right=True),
    ]
    empty = "no prices yet: the predictive policy sets them when work waits"
    listing.put(found, columns, row, empty="no such models" if wanted.is_filtered else empty)
    if found and not wanted.is_for_scripts:
        bound_s = read(MatchingView, answer).waiting_bound_s
        show.note(f"of the {duration(bound_s)} that the waiting work takes at least")
