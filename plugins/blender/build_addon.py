"""Builds the add-on's zip and validates it: `python -m plugins.blender.build_addon DIRECTORY`, `make addon`.

The zip holds `addon/` as the folder `ridgeline`. What it imports from `farm` and `plugins` is put inside, its
imports made relative, and templates become JSON: nothing is written twice, and Blender needs nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

import yaml

NAME = "ridgeline"
ROOT = Path(__file__).parents[2]
ADDON = Path(__file__).parent / "addon"
_OURS = ("farm", "plugins")
_BLENDERS_OWN = frozenset({"bpy", "mathutils", "bmesh"})
_IMPORT = re.compile(r"^( *)from (farm|plugins)((?:\.\w+)*) import ", re.MULTILINE)
_STRENUM = re.compile(r"^from enum import StrEnum$", re.MULTILINE)
_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file, so that equal sources make equal zips."""

STRENUM_SOURCE = '''"""enum.StrEnum, which the Python of Blender 3.4 to 4.0 lacks."""

from enum import Enum


class StrEnum(str, Enum):
    __str__ = str.__str__

    @staticmethod
    def _generate_next_value_(name, start, count, last_values):
        return name.lower()
'''


class BuildError(Exception):
    """The add-on cannot be built; the text says why."""


def build(directory: Path) -> Path:
    """Write the zip into `directory`, and return its path. Raises BuildError."""
    files = contents()
    version = tomllib.loads(files["blender_manifest.toml"])["version"]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{NAME}-{version}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(f"{NAME}/{name}", _DATE), text, zipfile.ZIP_DEFLATED)
    return path


def contents() -> dict[str, str]:
    """Path in the add-on's folder -> text. Raises BuildError."""
    files: dict[str, str] = {}
    for path in sorted(ADDON.glob("*")):
        if path.suffix in (".py", ".toml"):
            files[path.name] = path.read_text(encoding="utf-8")
    waiting = [module for name, text in files.items() if name.endswith(".py") for module in _ours(text, name)]
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        files[name] = (ROOT / name).read_text(encoding="utf-8")
        waiting += _ours(files[name], name)
    files = {name: _relative(text, name) if name.endswith(".py") else text for name, text in files.items()}
    files |= _data(tuple(files))
    for folder in {str(parent) for name in files for parent in Path(name).parents} - {"."}:
        files[f"{folder}/__init__.py"] = ""
    files["strenum.py"] = STRENUM_SOURCE
    return files


def _ours(text: str, name: str) -> Iterator[str]:
    """The modules of the project that this one imports, as paths. Raises BuildError for strange ones."""
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            wanted = [node.module or ""]
        else:
            continue
        for module in wanted:
            top = module.partition(".")[0]
            if top in _OURS:
                if isinstance(node, ast.Import):
                    raise BuildError(f"{name}: write `from ... import`, not `import {module}`")
                yield from _files_of(module, [alias.name for alias in node.names], name)
            elif top not in sys.stdlib_module_names | _BLENDERS_OWN and not _is_lazy(node, text):
                raise BuildError(f"{name} imports {module}, which Blender does not have")


def _files_of(module: str, names: list[str], importer: str) -> Iterator[str]:
    base = module.replace(".", "/")
    if (ROOT / f"{base}.py").is_file():
        yield f"{base}.py"
        return
    for each in names:
        path = f"{base}/{each}.py"
        if not (ROOT / path).is_file():
            raise BuildError(f"{importer} imports {each} from the package {module}: import it from a module")
        yield path


def _is_lazy(node: ast.AST, text: str) -> bool:
    """Inside a function: it is the function's business."""
    return text.split("\n")[getattr(node, "lineno", 1) - 1].startswith(" ")


def _relative(text: str, name: str) -> str:
    dots = "." * (name.count("/") + 1)
    text = _IMPORT.sub(lambda found: f"{found[1]}from {dots}{found[2]}{found[3]} import ", text)
    return _STRENUM.sub(f"from {dots}strenum import StrEnum", text)


def _data(modules: Collection[str]) -> dict[str, str]:
    """What `modules` read: templates as JSON, scripts as they are; named as a module, or "template"."""
    found = {}
    for folder in {str(Path(name).parent) for name in modules} - {"."}:
        for path in (ROOT / folder).iterdir():
            if path.stem != "template" and f"{folder}/{path.stem}.py" not in modules:
                continue
            if path.suffix == ".yaml":
                template = yaml.safe_load(path.read_text(encoding="utf-8"))
                found[f"{folder}/{path.stem}.json"] = json.dumps(template, indent=1, ensure_ascii=False)
            elif path.suffix == ".sh":
                found[f"{folder}/{path.name}"] = path.read_text(encoding="utf-8")
    return found


def validate(path: Path) -> str:
    """Ask Blender's own tool, and say which was asked; without one, say so. Raises BuildError."""
    command = _tool()
    if command is None:
        return "not validated by Blender: there is neither a bpy wheel nor a Blender from 4.2 on here"
    done = subprocess.run(
        [*command, "validate", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"Blender does not take {path.name}: {done.stdout.strip()}")
    return f"validated by {' '.join(Path(word).name for word in command)}"


def _tool() -> list[str] | None:
    found = importlib.util.find_spec("bpy")
    if found is not None and found.origin is not None:
        tools = sorted(Path(found.origin).parent.glob("*/scripts/addons_core/bl_pkg/cli/blender_ext.py"))
        if tools:
            return [sys.executable, str(tools[-1])]
    blender = shutil.which("blender")
    if blender is None:
        return None
    told = subprocess.run(
        [blender, "--version"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    version = re.search(r"Blender (\d+)\.(\d+)", told)
    is_new = version is not None and (int(version[1]), int(version[2])) >= (4, 2)
    return [blender, "--command", "extension"] if is_new else None


def main() -> int:
    try:
        path = build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
        told = validate(path)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size:,} bytes, {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
