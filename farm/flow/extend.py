"""A job's submission with more frames, or with others."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from farm.errors import UserError
from farm.flow.choose import check_step
from farm.flow.task_space import TaskSpace
from farm.model.frames import canonical, describe, parse_frames
from farm.model.work import Submission
from farm.text import clean

_TEXT_TYPES: Final = ("STRING", "RANGE_EXPR")
Parameters = Mapping[str, tuple[str, str]]
"""Name -> (OpenJD type, text), defaults filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    submission: Submission
    clones: dict[str, str]
    """New step -> the step that it does the same as, for other frames."""
    set_back: frozenset[str]
    """Steps that depend on them: what they made lacks the new frames."""


def extended(
    submission: Submission, parameters: Parameters, frames: Sequence[int], *, step: str | None = None
) -> Extended:
    """`submission` with steps for further frames; existing steps keep their tasks and indexes.

    Extended are the steps with the most frames, or `step`. A new step does what the old one does; whatever
    depends on the old one waits for it too. Job parameters that hold the frames, such as what a film is made
    of, hold the new ones afterwards. Raises UserError.
    """
    space = TaskSpace(submission.template, parameters, submission.outputs)
    held = {name: set(values) for name in space.steps if (values := space.frame_values(name)) is not None}
    if step is not None:
        check_step(space, step)
    chosen = _main(held) if step is None else [step]
    if not chosen or any(name not in held for name in chosen):
        raise UserError("the job's tasks have no frames, so none can be appended; submit another job")
    whole = set[int]().union(*held.values())
    family = {each for name in chosen for each in held if _is_of(each, name)}
    taken = whole if step is None else set[int]().union(*(held[name] for name in family))
    doubled = set(frames) & taken
    if doubled:
        raise UserError(f"the job has {describe(doubled)} already; `farm requeue` renders frames again")
    fresh = canonical(frames)
    template = copy.deepcopy(submission.template)
    steps = template["steps"]
    names = {name: _free(name, space.steps) for name in chosen}
    for each in steps:
        frozen = held.get(each["name"])
        if frozen is not None:
            _set_range(each, space.frame_parameter(each["name"]), canonical(frozen))
    clones = []
    for each in steps:
        if each["name"] in names:
            clone = copy.deepcopy(each)
            clone["name"] = names[each["name"]]
            _set_range(clone, space.frame_parameter(each["name"]), fresh)
            for need in clone.get("dependencies", ()):
                need["dependsOn"] = names.get(need["dependsOn"], need["dependsOn"])
            clones.append(clone)
    set_back = set()
    for each in steps:
        needed = [need["dependsOn"] for need in each.get("dependencies", ())]
        more = [names[name] for name in needed if name in names]
        if more and each["name"] not in names:
            each["dependencies"] = [*each["dependencies"], *({"dependsOn": name} for name in more)]
            set_back.add(each["name"])
    template["steps"] = [*steps, *clones]
    return Extended(
        submission=replace(
            submission,
            template=template,
            parameters={
                **submission.parameters,
                **{name: canonical(whole | set(frames)) for name in _holding(parameters, whole)},
            },
            outputs=(
                *submission.outputs,
                *(
                    replace(output, step=names[output.step])
                    for output in submission.outputs
                    if output.step in names
                ),
            ),
        ),
        clones={new: name for name, new in names.items()},
        set_back=frozenset(_closed(set_back, steps)),
    )


def with_frames(submission: Submission, parameters: Parameters, frames: Sequence[int]) -> Submission:
    """`submission` for other frames, where its steps take them from job parameters. Raises UserError.

    Steps that `extended` made are taken back: one step renders the frames that its family has, old and new.
    """
    submission, reunited = _reunited(submission, parameters)
    space = TaskSpace(submission.template, parameters, submission.outputs)
    held = {name: set(values) for name in space.steps if (values := space.frame_values(name)) is not None}
    holding = _holding(parameters, set[int]().union(*held.values())) if held else []
    if not holding:
        raise UserError("none of the job's parameters holds its frames; submit the scene or template again")
    template = copy.deepcopy(submission.template)
    whole = set[int]().union(*held.values())
    for each in template["steps"]:
        if reunited and held.get(each["name"]) == whole:  # `extended` has written its frames into it
            _set_range(each, space.frame_parameter(each["name"]), canonical(frames))
    changed = replace(
        submission,
        template=template,
        parameters={**submission.parameters, **dict.fromkeys(holding, canonical(frames))},
    )
    types = {name: kind for name, (kind, _) in parameters.items()}
    typed = {name: (types.get(name, ""), text) for name, text in changed.parameters.items()}
    after = TaskSpace(changed.template, typed, changed.outputs)
    strange = [name for name in held if set(after.frame_values(name) or ()) != set(frames)]
    if strange:
        raise UserError(
            f"step '{clean(strange[0], limit=60, one_line=True)}' has frames of its own, which follow no "
            "parameter; submit the scene or template again"
        )
    return changed


def _reunited(submission: Submission, parameters: Parameters) -> tuple[Submission, frozenset[str]]:
    """`submission` before it was extended, with all its frames; and the steps that were taken back."""
    space = TaskSpace(submission.template, parameters, submission.outputs)
    steps = {each["name"]: each for each in submission.template["steps"]}
    origin: dict[str, str] = {}
    for name in space.steps:
        for base in space.steps:
            if (
                name != base
                and base not in origin
                and _is_of(name, base)
                and _is_clone(steps[name], steps[base])
            ):
                origin.setdefault(name, base)
    if not origin:
        return submission, frozenset()
    template = copy.deepcopy(submission.template)
    template["steps"] = [each for each in template["steps"] if each["name"] not in origin]
    for each in template["steps"]:
        family = [each["name"], *(clone for clone, base in origin.items() if base == each["name"])]
        frames = set[int]().union(*(space.frame_values(name) or () for name in family))
        if len(family) > 1:
            _set_range(each, space.frame_parameter(each["name"]), canonical(frames))
        if "dependencies" in each:
            each["dependencies"] = [need for need in each["dependencies"] if need["dependsOn"] not in origin]
    outputs = tuple(output for output in submission.outputs if output.step not in origin)
    return replace(submission, template=template, outputs=outputs), frozenset(origin)


def _is_clone(step: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether both do the same, for other frames: one of them was made of the other."""
    return bool(base.get("parameterSpace")) and _without_frames(step) == _without_frames(base)


def _without_frames(step: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in step.items() if name not in ("name", "dependencies")}
    space = copy.deepcopy(told.get("parameterSpace") or {})
    for definition in space.get("taskParameterDefinitions", ()):
        definition.pop("range", None)
    return told | {"parameterSpace": space}


def _main(held: Mapping[str, set[int]]) -> list[str]:
    """The steps with the most frames, if all of them have the same; a preview or a probe has fewer."""
    most = max(map(len, held.values()), default=0)
    names = [name for name, frames in held.items() if len(frames) == most]
    if any(held[name] != held[names[0]] for name in names):
        told = ", ".join(clean(name, limit=60, one_line=True) for name in names)
        raise UserError(f"the steps {told} have different frames; say which one is meant with --step")
    return names


def _holding(parameters: Parameters, frames: Collection[int]) -> list[str]:
    """Names of the text parameters that hold just these frames."""
    found = []
    for name, (kind, text) in parameters.items():
        if kind.upper() not in _TEXT_TYPES:
            continue
        try:
            is_same = set(parse_frames(text)) == frames
        except UserError:
            continue
        if is_same:
            found.append(name)
    return found


def _set_range(step: dict[str, Any], parameter: str | None, text: str) -> None:
    for definition in step["parameterSpace"]["taskParameterDefinitions"]:
        if definition["name"] == parameter:
            definition["range"] = text


def _is_of(name: str, original: str) -> bool:
    """Whether the step is the other one, or one of its earlier extensions."""
    return name == original or re.fullmatch(re.escape(original) + r" [0-9]+", name) is not None


def _free(name: str, taken: Collection[str]) -> str:
    number = 2
    while f"{name} {number}" in taken:
        number += 1
    return f"{name} {number}"


def _closed(names: set[str], steps: Sequence[dict[str, Any]]) -> set[str]:
    """With whatever depends on them in turn."""
    found = set(names)
    while True:
        more = {
            step["name"]
            for step in steps
            if any(need["dependsOn"] in found for need in step.get("dependencies", ()))
        }
        if more <= found:
            return found
        found |= more
