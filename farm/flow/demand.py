"""What a step asks of a node, read from its template's host requirements."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from farm.errors import UserError
from farm.flow.template_text import shown
from farm.model.limits import LIMIT_PREFIX, check_limit_name
from farm.model.machines import Demand
from farm.model.work import Submission, Tag

PROFILE_ATTRIBUTE: Final = "attr.farm.profile"
"""A host attribute that is none: it tells the step's profile, and no node is asked for it."""
SOFTWARE_ATTRIBUTE: Final = "attr.farm.software"
"""Renderers that a step needs, beyond those of the whole job: allOf [ffmpeg]."""
PROBE_ATTRIBUTE: Final = "attr.farm.probe"
"""anyOf [yes]: the step is a short probe of those that depend on it, and keeps nothing that it writes."""


def demand_of(step: Any, submission: Submission) -> tuple[Demand, Tag | None, bool]:
    """What the step asks of a node, the profile its author wrote into it, and whether it is a probe.

    OpenJD's rules: names and attribute values compare without regard to case; gpu.memory is a least size for
    each GPU in MiB, not a pool; memory is MiB. A `max` never refuses a node that has more. Half a GPU asks
    for a whole one. OpenJD reserves one vcpu for a step that names none; here such a step takes a slot alone,
    or a farm of single-slot nodes would have to count cores.
    """
    least: dict[str, Decimal] = {}
    any_of: list[tuple[str, tuple[str, ...]]] = []
    all_of: list[tuple[str, tuple[str, ...]]] = []
    software = set(submission.software)
    tag: Tag | None = None
    is_probe = False
    required = step.hostRequirements
    for amount in (required.amounts or ()) if required else ():
        least[str(amount.name).lower()] = Decimal(amount.min if amount.min is not None else 0)
    for attribute in (required.attributes or ()) if required else ():
        name = str(attribute.name).lower()
        wanted_any = tuple(str(value).lower() for value in attribute.anyOf or ())
        wanted_all = tuple(str(value).lower() for value in attribute.allOf or ())
        if name == PROFILE_ATTRIBUTE:
            tag = _tag(step.name, {*wanted_any, *wanted_all})
            continue
        if name == PROBE_ATTRIBUTE:
            is_probe = "yes" in (*wanted_any, *wanted_all)
            continue
        if name == SOFTWARE_ATTRIBUTE:
            if wanted_any:
                raise UserError(f"step '{shown(step.name)}': {SOFTWARE_ATTRIBUTE} takes allOf, not anyOf")
            software.update(wanted_all)
            continue
        if wanted_any:
            any_of.append((name, tuple(sorted(set(wanted_any)))))
        if wanted_all:
            all_of.append((name, tuple(sorted(set(wanted_all)))))
    for limit, amount in submission.settings.limits.items():
        key = LIMIT_PREFIX + check_limit_name(limit)
        least[key] = max(least.get(key, Decimal(0)), Decimal(amount))
    vram_mib = math.ceil(least.pop("amount.worker.gpu.memory", Decimal(0)))
    gpus = math.ceil(least.pop("amount.worker.gpu", Decimal(0)))
    demand = Demand(
        pool=submission.settings.pool,
        cpus=float(least.pop("amount.worker.vcpu", Decimal(0))),
        memory_mib=math.ceil(least.pop("amount.worker.memory", Decimal(0))),
        gpus=max(gpus, 1) if vram_mib > 0 else gpus,
        vram_mib=vram_mib,
        any_of=tuple(sorted(any_of)),
        all_of=tuple(sorted(all_of)),
        amounts=tuple(sorted((name, float(value)) for name, value in least.items() if value > 0)),
        software=tuple(sorted(software)),
    )
    return demand, tag, is_probe


def _tag(step: str, values: set[str]) -> Tag:
    strange = sorted(values - {tag.value for tag in Tag})
    if strange:
        raise UserError(
            f"step '{shown(step)}': {PROFILE_ATTRIBUTE} is '{strange[0]}'; it is one of {', '.join(Tag)}"
        )
    if {Tag.COMPUTE.value, Tag.BANDWIDTH.value} <= values:
        return Tag.BALANCED
    return Tag(min(values))
