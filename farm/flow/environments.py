"""Environment templates around a job: a queue's, or one that somebody asks for."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from farm.errors import UserError
from farm.text import clean

Template = dict[str, Any]


def with_environments(template: Template, environments: Iterable[Mapping[str, Any]]) -> Template:
    """The job template with these environment templates' environments entered before its own, in their order.

    Their parameters become the job's; where both define one, the job's definition holds, as long as the types
    agree. An environment that the job has already, word for word, is not entered twice. Raises UserError.
    """
    made = copy.deepcopy(template)
    own = list(made.get("jobEnvironments") or ())
    added: list[Any] = []
    for each in environments:
        environment = each.get("environment")
        if environment in own or environment in added:
            continue
        added.append(copy.deepcopy(environment))
        _merge_parameters(made, each)
        extensions = [*(made.get("extensions") or ()), *(each.get("extensions") or ())]
        if extensions:
            made["extensions"] = list(dict.fromkeys(extensions))
    if added:
        made["jobEnvironments"] = [*added, *own]
    return made


def _merge_parameters(template: Template, environment: Mapping[str, Any]) -> None:
    known = {definition["name"]: definition for definition in template.get("parameterDefinitions") or ()}
    more = []
    for definition in environment.get("parameterDefinitions") or ():
        name = definition["name"]
        if name not in known:
            more.append(copy.deepcopy(definition))
        elif str(known[name].get("type")).upper() != str(definition.get("type")).upper():
            told = clean(str((environment.get("environment") or {}).get("name")), limit=60, one_line=True)
            raise UserError(
                f"parameter {clean(name, limit=60, one_line=True)} is {known[name].get('type')} in the job "
                f"and {definition.get('type')} in the environment {told}"
            )
    if more:
        template["parameterDefinitions"] = [*(template.get("parameterDefinitions") or ()), *more]
