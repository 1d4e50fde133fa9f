"""Request bodies: the nouns, but an unknown field is an error.

A misspelt setting must not silently mean its default. Messages between farm and nodes ignore what they do not
know, so the nouns themselves cannot say this; a body can, and what is nested in it follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from farm.control import requests
from farm.model import work

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(work.Submission):
    """One request to render: an Open Job Description template, its parameters, and settings."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange(requests.JobChange):
    """What to change of a job; what is null or left out stays as it is."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(requests.Append):
    """Frames to add to a job."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChoice(requests.TaskChoice):
    """Which tasks of a job; nothing given: all of them. Several together narrow the choice."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryChoice(requests.RetryChoice):
    """Which tasks of a job to try again, by their states and as a TaskChoice."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest(requests.TokenRequest):
    """A new token."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRequest(requests.InviteRequest):
    """A code for one machine to join."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(requests.JoinRequest):
    """A machine that wants to join, and the code that it was given."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRequest(requests.LimitRequest):
    """What a limit is to be."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    kind: str
    """user-error, no-token, forbidden, not-found, rejected, too-many, too-large, unavailable or
    internal."""
    message: str
    """One readable text: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView:
    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    is_up: bool = True
