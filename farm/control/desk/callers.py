"""Who asks something of the farm, what that lets him do, and the audit row of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.errors import Forbidden, UserError
from farm.model.ids import JobId
from farm.model.work import Job
from farm.store import audit, jobs
from farm.store.tokens import TokenOwner
from farm.text import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and how: the head of an audit row."""

    owner: TokenOwner
    ip: str
    method: str
    path: str

    @property
    def user(self) -> str:
        return self.owner.user

    @property
    def is_admin(self) -> bool:
        return self.owner.role == "admin"


def audit_row(
    db: sa.Connection,
    by: Caller,
    target: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    status: int = 200,
) -> None:
    entry = audit.Entry(
        actor=by.user,
        token=by.owner.name,
        ip=by.ip,
        method=by.method,
        path=by.path,
        target=target,
        before=before,
        after=after,
        status=status,
    )
    audit.add(db, entry)


def check_admin(by: Caller, what: str) -> None:
    if not by.is_admin:
        raise Forbidden(f"only an admin may {what}; the token {by.owner.name!r} has the role {by.owner.role}")


def check_word(what: str, text: str) -> None:
    if not text.strip() or len(text) > 255 or clean(text, one_line=True) != text:
        raise UserError(f"{what} must be 1 to 255 printable characters")


def own_job(db: sa.Connection, job_id: JobId, by: Caller) -> Job:
    """The job, if it is the caller's to steer. Raises NotFound, Forbidden."""
    job = jobs.read_job(db, job_id)
    if not by.is_admin and job.settings.user != by.user:
        raise Forbidden(
            f"job {job_id} belongs to {job.settings.user or 'nobody'}; "
            f"{by.user} may steer only their own jobs"
        )
    return job
