"""`farm config show`: every setting, its value, and where that comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from farm.cli import show
from farm.cli.listing import Listing, Wanted
from farm.cli.show import Column, cell
from farm.flow.filters import Field, Kind, Table, table
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    value: Any
    source: str
    """As `setting_sources` tells it."""


FIELDS: Final[Table[Setting]] = table(
    (
        Field(name="setting", kind=Kind.TEXT, of=lambda setting: setting.name, help="what it is called"),
        Field(name="value", kind=Kind.TEXT, of=lambda setting: _text(setting.value), help="what it is"),
        Field(name="from", kind=Kind.TEXT, of=lambda setting: setting.source, help="where that comes from"),
    )
)


def show_settings(wanted: Wanted) -> None:
    """As JSON by name, where no columns were chosen. Raises UserError when a setting is wrong."""
    listing = Listing(Setting, FIELDS, "settings", wanted)
    sources = setting_sources()
    every = (
        Setting(name=name, value=value, source=sources[name])
        for name, value in masked(load_settings()).items()
    )
    found = [setting for setting in every if listing.filter(setting)]
    if wanted.is_json and wanted.columns is None:
        show.data({setting.name: {"value": setting.value, "source": setting.source} for setting in found})
        return
    listing.put(
        ((setting, None) for setting in found),
        [Column("Setting"), Column("Value", shrinks=True, least=16), Column("From", shrinks=True, least=12)],
        lambda setting: [cell(setting.name), cell(_text(setting.value)), cell(setting.source)],
        empty="no such settings",
    )


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
