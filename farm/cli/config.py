"""`farm config show`: every setting, its value, and where that comes from."""

from __future__ import annotations

import re
from typing import Any, Final

from farm.cli import show
from farm.cli.show import Column, cell
from farm.settings import Settings, load_settings, setting_sources

MASK: Final = "********"
_SECRETS: Final = frozenset({"api_token"})
_PASSWORD: Final = re.compile(r"(?<=://)([^/@\s:]*):([^@\s]*)@")


def masked(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values. Tokens, and passwords in URLs, are hidden."""
    values = settings.model_dump(mode="json")
    for key, value in values.items():
        if key in _SECRETS and value:
            values[key] = MASK
        elif isinstance(value, str) and "://" in value:
            values[key] = hide_password(value)
    return values


def hide_password(url: str) -> str:
    return _PASSWORD.sub(lambda match: f"{match.group(1)}:{MASK}@", url)


def show_settings(*, is_json: bool) -> None:
    """Raises UserError when a setting is wrong."""
    settings = load_settings()
    sources = setting_sources()
    values = masked(settings)
    if is_json:
        show.data({key: {"value": value, "source": sources[key]} for key, value in values.items()})
        return
    show.table(
        [Column("Setting"), Column("Value", shrinks=True, least=16), Column("From", shrinks=True, least=12)],
        ([cell(key), cell(_text(value)), cell(sources[key])] for key, value in values.items()),
        empty="no settings",
    )


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
