"""Open Job Description templates and bundles as submissions.

A bundle is a directory: `template.yaml` (or .json), `parameter_values.yaml`, and `asset_references.yaml`,
which is only checked: nodes read the files where they are. Relative paths become absolute here, because only
this machine knows what they start from: a template's own default starts at the template, a value in the
bundle at the bundle, a value typed here at the working directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from farm.cli.show import shown
from farm.errors import UserError
from farm.flow.bundle_settings import read_bundle_settings
from farm.flow.environments import with_environments
from farm.flow.template import check_environment_template, is_environment_template
from farm.flow.template_text import MAX_TEMPLATE_BYTES, load_template_text
from farm.model.frames import canonical
from farm.model.plugin import SubmitOptions
from farm.model.work import JobSettings, OutputSpec, Submission

SUFFIXES: Final = (".yaml", ".yml", ".json")
_PATHS: Final = ("PATH", "LIST[PATH]")
_PARAMETER: Final = re.compile(r"\{\{\s*(?:Raw)?Param\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was read from disk, paths absolute."""

    template: dict[str, Any]
    what: str
    """The template's path, for messages."""
    parameters: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of JobSettings."""
    outputs: tuple[OutputSpec, ...] = ()
    notes: tuple[str, ...] = ()


def read_bundle(path: Path, *, given: Collection[str] = (), environments: Iterable[Path] = ()) -> Bundle:
    """`path`, absolute, is a template or a bundle's directory. Raises UserError.

    environments: paths of environment templates to be entered before the template's own.
    given: names of parameters that have a value of the artist's; their defaults do not matter.
    """
    if not path.is_dir():
        template = _with_environments(read_template(path), environments)
        bundle = Bundle(template=template, what=str(path))
        return replace(bundle, parameters=_default_paths(bundle.template, path.parent, given))
    found = _one_of(path, "template")
    if found is None:
        raise UserError(f"{path} is a directory without a template.yaml: it is no bundle")
    template = _with_environments(read_template(found), environments)
    own: dict[str, str] = {}
    settings: dict[str, Any] = {}
    values = _one_of(path, "parameter_values")
    if values is not None:
        listed = load_template_text(_text(values), what=str(values)).get("parameterValues", [])
        own, settings = read_bundle_settings(listed)
    parameters = _default_paths(template, path, {*given, *own}) | absolute_paths(template, own, path)
    notes = []
    missing = [name for name in read_assets(path) if not os.path.exists(name)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        notes.append(f"asset_references names {shown(missing[0], 200)}{more}, which does not exist here")
    outputs = settings.pop("outputs", ())
    return Bundle(
        template=template,
        what=str(found),
        parameters=parameters,
        settings=settings,
        outputs=outputs,
        notes=tuple(notes),
    )


def _with_environments(template: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    found = [(path, read_template(path)) for path in paths]
    for path, environment in found:
        if not is_environment_template(environment):
            raise UserError(f"{path} is no environment template: its specificationVersion says otherwise")
        check_environment_template(environment)
    return with_environments(template, [environment for _, environment in found]) if found else template


def read_template(path: Path) -> dict[str, Any]:
    """Of a file, JSON or YAML. Raises UserError."""
    return load_template_text(_text(path), what=str(path))


def read_assets(folder: Path) -> tuple[str, ...]:
    """The input files and directories that a bundle's asset_references.yaml names, absolute.

    Raises UserError when there is one that is not as the convention says.
    """
    found = _one_of(folder, "asset_references")
    if found is None:
        return ()
    references = load_template_text(_text(found), what=str(found)).get("assetReferences") or {}
    inputs = references.get("inputs") if isinstance(references, dict) else None
    if inputs is None:
        return ()
    names: list[str] = []
    for key in ("filenames", "directories"):
        listed = inputs.get(key) or [] if isinstance(inputs, dict) else None
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise UserError(f"{found}: assetReferences.inputs must hold lists: filenames, directories")
        names += listed
    return tuple(os.path.normpath(folder / name) for name in names)


def bundle_submission(
    bundle: Bundle, given: Mapping[str, str], options: SubmitOptions, *, chosen: Mapping[str, Any], stem: str
) -> Submission:
    """`given`: the values typed with -p. `chosen`: the settings typed, which win over the bundle's.

    Raises UserError for an unknown parameter, and for one that has no value.
    """
    template = bundle.template
    if options.output is not None:
        raise UserError(
            "--output: a template's own parameters say where files go; set them with -p Name=value"
        )
    if options.chunk_size != 1:
        raise UserError(
            "--chunk-size: a template makes its own chunks; look for a parameter of it to set with -p"
        )
    if options.arguments:
        raise UserError("arguments after -- belong to a scene or a command; a template takes -p Name=value")
    definitions = _definitions(template)
    for name in (*bundle.parameters, *given):
        if name not in definitions:
            raise UserError(_unknown(name, definitions, bundle.what))
    typed = dict(given)
    if options.frames:
        if "Frames" not in definitions:
            raise UserError(f"--frames: {bundle.what} has no parameter Frames; {_known(definitions)}")
        typed["Frames"] = canonical(options.frames)
    parameters = bundle.parameters | absolute_paths(template, typed, options.cwd)
    missing = [
        name
        for name, definition in definitions.items()
        if "default" not in definition and name not in parameters
    ]
    if missing:
        told = " ".join(f"-p {name}=..." for name in missing)
        raise UserError(f"{bundle.what}: {', '.join(missing)} must be given: {told}")
    return Submission(
        name=options.name or _job_name(template, parameters) or stem,
        template=template,
        parameters=parameters,
        settings=JobSettings(**bundle.settings | dict(chosen)),
        outputs=bundle.outputs,
    )


def read_parameters(texts: Iterable[str], cwd: Path) -> dict[str, str]:
    """Values of `-p`: `Name=value`, `file://values.yaml`, or a JSON object. Later ones win.

    Raises UserError.
    """
    values: dict[str, str] = {}
    for text in texts:
        if text.startswith("file://"):
            path = cwd / Path(text.removeprefix("file://")).expanduser()
            values |= _flat(load_template_text(_text(path), what=str(path)), str(path))
        elif text.lstrip().startswith("{"):
            values |= _flat(load_template_text(text, what="-p"), "-p")
        else:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise UserError(f"-p {shown(text, 60)}: write Name=value, or file://values.yaml")
            values[name.strip()] = value
    return values


def absolute_paths(template: Mapping[str, Any], values: Mapping[str, str], base: Path) -> dict[str, str]:
    """`values` with those of PATH and LIST[PATH] parameters seen from `base`."""
    definitions = _definitions(template)
    is_uri_allowed = "EXPR" in _list(template.get("extensions"))

    def seen(path: str) -> str:
        if path == "" or (is_uri_allowed and _URI.match(path)):
            return path
        return os.path.normpath(base / path)

    made = dict(values)
    for name, text in values.items():
        kind = _kind(definitions.get(name, {}))
        if kind == "PATH":
            made[name] = seen(text)
        elif kind == "LIST[PATH]":
            made[name] = json.dumps([seen(path) for path in _path_list(name, text)], ensure_ascii=False)
    return made


def _default_paths(template: Mapping[str, Any], base: Path, given: Collection[str]) -> dict[str, str]:
    """Values for the PATH parameters that are not `given` and whose default is a relative path.

    Raises UserError for a default that is absolute or climbs out of `base`: a template that somebody sent
    must not read or write elsewhere on this site unless the artist says so.
    """
    found: dict[str, str] = {}
    for name, definition in _definitions(template).items():
        default = definition.get("default")
        if _kind(definition) not in _PATHS or not default or name in given:
            continue
        texts = default if isinstance(default, list) else [default]
        for text in texts:
            _check_default(name, text, base)
        plain = json.dumps(default) if isinstance(default, list) else str(default)
        found |= absolute_paths(template, {name: plain}, base)
    return found


def _check_default(name: str, text: Any, base: Path) -> None:
    if not isinstance(text, str) or _URI.match(text):
        return
    if not Path(os.path.normpath(base / text)).is_relative_to(base) or Path(text).is_absolute():
        raise UserError(
            f"the template's default for the path {name} is {shown(text, 80)}, which lies "
            f"outside the template's directory: if that is right, give it yourself: -p {name}=PATH"
        )


def _definitions(template: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Job parameters by name; malformed parts are left to the farm's own check."""
    return {
        definition["name"]: definition
        for definition in _list(template.get("parameterDefinitions"))
        if isinstance(definition, dict) and isinstance(definition.get("name"), str)
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(definition: Mapping[str, Any]) -> str:
    return str(definition.get("type", "")).upper()


def _path_list(name: str, text: str) -> list[str]:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise UserError(f'parameter {name} is a list of paths: write -p \'{name}=["a.png", "b.png"]\'')
    return paths


def _job_name(template: Mapping[str, Any], parameters: Mapping[str, str]) -> str:
    """The template's own name with its parameters filled in; empty when it holds more than parameters."""
    definitions = _definitions(template)

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        value = parameters.get(name, definitions.get(name, {}).get("default"))
        return match.group(0) if value is None else str(value)

    name = _PARAMETER.sub(fill, str(template.get("name", "")))
    return "" if "{{" in name else shown(name, 200)


def _flat(values: Mapping[str, Any], what: str) -> dict[str, str]:
    """As `read_bundle_settings` turns values into text; settings do not belong here."""
    entries = [{"name": name, "value": value} for name, value in values.items()]
    parameters, settings = read_bundle_settings(entries)
    if settings or any(":" in name for name in values):
        raise UserError(f"{what} may hold job parameters only; use the options of `farm submit` for settings")
    return parameters


def unknown_parameter(template: Mapping[str, Any], name: str, what: str) -> str:
    """What to say of a parameter that the template does not have; empty when it has."""
    definitions = _definitions(template)
    return "" if name in definitions else _unknown(name, definitions, what)


def _unknown(name: str, definitions: Mapping[str, Any], what: str) -> str:
    close = get_close_matches(name, definitions, n=1)
    hint = f"did you mean {close[0]}?" if close else _known(definitions)
    return f"{what} has no parameter '{shown(name, 60)}'; {hint}"


def _known(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"it has {shown(listed, 300)}" if listed else "it has none"


def _one_of(folder: Path, stem: str) -> Path | None:
    found = [folder / f"{stem}{suffix}" for suffix in SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        raise UserError(f"{folder} holds {found[0].name} and {found[1].name}: keep one of them")
    return found[0] if found else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEMPLATE_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > MAX_TEMPLATE_BYTES:
        raise UserError(f"{path} is larger than {MAX_TEMPLATE_BYTES:,} bytes: it is no template")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start:,})") from error
