"""The environments that this farm puts around every job (`queue_environments`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.flow.template import check_environment_template, is_environment_template
from farm.flow.template_text import load_template_text


def load_environments(paths: Iterable[Path]) -> tuple[dict[str, Any], ...]:
    """Environment templates from files. Raises UserError that names the file."""
    found = []
    for path in paths:
        try:
            template = load_template_text(path.read_text(encoding="utf-8"), what=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"queue_environments: cannot read {path}: {error}") from error
        if not is_environment_template(template):
            raise UserError(f"queue_environments: {path} is no environment template")
        try:
            check_environment_template(template)
        except UserError as error:
            raise UserError(f"queue_environments: {path}: {error}") from error
        found.append(template)
    return tuple(found)
