"""Where a staged attempt writes, and how its files get their final names: once, whole, never over others.

Below the output directory D of a job:

    D/.farm/<job uid>/<attempt id>/...            the attempt's private directory (the stage)
    D/.farm/<job uid>/<task id>.g<generation>.json  which attempt's files are the task's (the marker)
    D/.farm-replaced/<job uid>/<attempt id>/...   files that were in the way, moved aside, never deleted

Publishing is a commit protocol. (1) The files are made durable. (2) The manifest, written in the stage, is
linked to the marker's name; linking fails where the name exists, so exactly one attempt of a task generation
*commits*. (3) Each file is linked to its final name. (4) Directories are made durable. A crash after (2)
loses nothing: whoever comes next finds the marker and rolls the publication forward from the winner's stage.
All steps may be repeated, by several processes at once.

Standard library only: the agent imports this too. Errors are StagingError, with the class and one line.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from farm.errors import FarmError
from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, TaskId
from farm.model.states import Outcome

PRIVATE = ".farm"
REPLACED = ".farm-replaced"
_MANIFEST = ".farm-manifest.json"
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
_FULL_BYTES = 1024 * 1024
_MANY = 100
"""Bound on the steps of a loop that only a stream of foreign files could keep going."""

Fault = Callable[[str], None]
"""Called with the name of each step before it is done; tests kill the process there, or raise OSError."""


class StagingError(FarmError):
    """Output cannot be staged or published: the class of the failure, and one line for people."""

    def __init__(self, outcome: Outcome, reason: str, *, is_final: bool = False) -> None:
        """is_final: trying again cannot help."""
        super().__init__(reason)
        self.outcome = outcome
        self.is_final = is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An attempt's private directory, and what is published from it."""

    final: Path
    """The output directory, links resolved."""
    shown: str
    """The output directory as the job names it."""
    job_uid: str
    task_id: TaskId
    generation: int
    attempt_id: AttemptId

    @property
    def root(self) -> Path:
        return self.final / PRIVATE / self.job_uid

    @property
    def directory(self) -> Path:
        return self.root / self.attempt_id

    @property
    def marker(self) -> Path:
        return self.root / f"{self.task_id}.g{self.generation}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Whose files are under the final names."""

    by: AttemptId
    files: tuple[PublishedFile, ...]
    warnings: tuple[str, ...] = ()


def _no_fault(step: str) -> None:
    pass


# --- before the attempt -----------------------------------------------------------------------------------


def open_stage(
    directory: str,
    *,
    allowed_roots: Sequence[str],
    job_uid: str,
    task_id: TaskId,
    generation: int,
    attempt_id: AttemptId,
) -> Stage:
    """Create the stage, and the output directory when it is missing. Raises StagingError."""
    if not os.path.isabs(directory) or "\0" in directory:
        raise StagingError(
            Outcome.JOB_ERROR, f"the output directory {directory!r} is not an absolute path", is_final=True
        )
    for name in (job_uid, attempt_id):
        _require_plain_name(name)
    with as_storage(directory):
        final = Path(os.path.realpath(directory))
        if allowed_roots and not any(
            final.is_relative_to(os.path.realpath(allowed_root)) for allowed_root in allowed_roots
        ):
            places = ", ".join(allowed_roots)
            raise StagingError(
                Outcome.JOB_ERROR, f"this node may not write to {directory}; it may below {places}"
            )
        stage = Stage(
            final=final,
            shown=directory,
            job_uid=job_uid,
            task_id=task_id,
            generation=generation,
            attempt_id=attempt_id,
        )
        final.mkdir(parents=True, exist_ok=True)
        for private in (final / PRIVATE, stage.root, stage.directory):
            private.mkdir(exist_ok=True)
            if private.is_symlink():
                raise StagingError(Outcome.STORAGE, f"{private} is a symbolic link; remove it")
    return stage


def check_names(names: Sequence[str]) -> None:
    """Raise StagingError for an expected name that leads out of the output directory."""
    for name in names:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name or parts[0] == PRIVATE:
            raise StagingError(
                Outcome.JOB_ERROR, f"{name!r} is not a file name inside the output directory", is_final=True
            )


def refuse_overwrite(stage: Stage, names: Sequence[str], *, may_replace: bool) -> None:
    """Raise StagingError when a file that this task did not write is in the way. Commits nothing."""
    if may_replace:
        return
    with as_storage(stage.shown):
        _refuse_overwrite(stage, names)


def _refuse_overwrite(stage: Stage, names: Sequence[str]) -> None:
    earlier: set[tuple[str, int]] | None = None
    for name in names:
        final, staged = _status(stage.final / name), _status(stage.directory / name)
        if final is None or (staged is not None and os.path.samestat(final, staged)):
            continue
        if earlier is None:
            earlier = _earlier_generations(stage)
        if (name, final.st_size) not in earlier:
            raise StagingError(
                Outcome.STORAGE,
                f"{name} already exists and was not made by this job; "
                "submit with --overwrite or choose another --output",
                is_final=True,
            )


def adopt(stage: Stage, *, may_replace: bool = False, fault: Fault = _no_fault) -> Publication | None:
    """Complete an earlier attempt's committed publication; None when there is none. Raises StagingError."""
    with as_storage(stage.shown):
        manifest = _read_manifest(stage.marker)
        return None if manifest is None else _roll_forward(stage, manifest, may_replace, fault)


# --- after it -----------------------------------------------------------------------------------------------


def publish(
    stage: Stage,
    checked: Sequence[PublishedFile],
    *,
    may_replace: bool = False,
    fault: Fault = _no_fault,
) -> Publication:
    """Publish everything in the stage, `checked` (names relative to it) and what else is there.

    When another attempt of this task generation has committed before, its publication is completed instead,
    and the answer names it. Raises StagingError; after a commit the next attempt, or `adopt`, carries on.
    """
    with as_storage(stage.shown):
        earlier = adopt(stage, may_replace=may_replace, fault=fault)
        if earlier is not None:
            return earlier
        known = {file.path for file in checked}
        extra, warnings = _others(stage.directory, known)
        files = (*checked, *extra)
        for file in files:
            _require_inside(stage, file.path)
        try:
            refuse_overwrite(stage, [file.path for file in files], may_replace=may_replace)
        except StagingError:
            # Another attempt may have published since we looked: then its files are in the way, rightly.
            earlier = adopt(stage, may_replace=may_replace, fault=fault)
            if earlier is not None:
                return earlier
            raise
        fault("sync files")
        staged = [stage.directory / file.path for file in files]
        for path in (*staged, *{path.parent for path in staged}):
            _sync(path)
        manifest = _write_manifest(stage, files, fault)
        fault("commit")
        if not _commit(stage):
            found = _read_manifest(stage.marker)
            if found is None:
                _tidied()
            manifest = found
        _sync(stage.root)
        publication = _roll_forward(stage, manifest, may_replace, fault)
        return replace(publication, warnings=tuple(warnings))


def discard(stage: Stage) -> None:
    """Remove the stage of an attempt that has ended, unless its files are committed and not yet published."""
    remove_stage(stage.final, stage.job_uid, stage.attempt_id)


def remove_stage(directory: str | Path, job_uid: str, attempt_id: str) -> None:
    """Remove an ended attempt's private directory.

    It stays while it holds committed files that are not all published: a later attempt completes them. What
    cannot be removed now is left for `tidy_job`.
    """
    _require_plain_name(job_uid)
    _require_plain_name(attempt_id)
    final = Path(os.path.realpath(directory))
    stage = final / PRIVATE / job_uid / attempt_id
    if not _is_real_directory(final / PRIVATE) or not _is_real_directory(stage.parent):
        return
    try:
        manifest = _read_manifest(stage / _MANIFEST)
        if manifest is not None:
            marker = _read_manifest(stage.parent / f"{manifest['task']}.g{manifest['generation']}.json")
            if marker is not None and marker["attempt"] == attempt_id and not _is_published(final, marker):
                return
    except (OSError, StagingError):
        return
    shutil.rmtree(stage, ignore_errors=True)


def tidy_job(directory: str | Path, job_uid: str) -> None:
    """Remove all that is private to an ended job below `directory`. Follows no links; published files stay.

    The tree is moved away first, in one step: an attempt that still lives cannot commit from then on.
    Raises OSError when it cannot be removed (a later call carries on).
    """
    _require_plain_name(job_uid)
    private = Path(os.path.realpath(directory)) / PRIVATE
    if not _is_real_directory(private):
        return
    doomed = f"{job_uid}.tidied-"
    if _is_real_directory(private / job_uid):
        os.rename(private / job_uid, private / f"{doomed}{secrets.token_hex(4)}")
    for name in os.listdir(private):
        if name.startswith(doomed) and _is_real_directory(private / name):
            shutil.rmtree(private / name)
    with suppress(OSError):
        private.rmdir()


def is_full(directory: Path) -> bool:
    """No room for another file."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    no_names = status.f_files > 0 and status.f_favail == 0
    return status.f_bavail * status.f_frsize < _FULL_BYTES or no_names


# --- steps --------------------------------------------------------------------------------------------------


def _others(directory: Path, known: set[str]) -> tuple[list[PublishedFile], list[str]]:
    """Regular files in the stage beyond `known`, and warnings about what is left out."""
    files: list[PublishedFile] = []
    warnings: list[str] = []

    def walk(relative: str) -> None:
        with os.scandir(directory / relative) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{relative}/{entry.name}" if relative else entry.name
                if name in known or name == _MANIFEST:
                    continue
                shown = name.encode(errors="replace").decode()
                if shown != name or name in (PRIVATE, REPLACED):
                    warnings.append(f"{shown} was not published: its name is not fit")
                elif entry.is_dir(follow_symlinks=False):
                    walk(name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(PublishedFile(path=name, size_bytes=entry.stat().st_size))
                else:
                    warnings.append(f"{shown} was not published: it is not a regular file")

    try:
        walk("")
    except FileNotFoundError:
        _tidied()
    return files, warnings


def _write_manifest(stage: Stage, files: Sequence[PublishedFile], fault: Fault) -> dict[str, Any]:
    manifest = {
        "attempt": stage.attempt_id,
        "task": stage.task_id,
        "generation": stage.generation,
        "files": [
            {
                "name": file.path,
                "size_bytes": file.size_bytes,
                "inode": _inode(stage.directory / file.path),
                "width": file.width,
                "height": file.height,
            }
            for file in files
        ],
    }
    fault("manifest")
    path = stage.directory / _MANIFEST
    try:
        with path.open("w", encoding="utf-8") as out:
            json.dump(manifest, out)
            out.flush()
            fault("sync manifest")
            os.fsync(out.fileno())
        _sync(stage.directory)
    except FileNotFoundError:
        _tidied()
    return manifest


def _commit(stage: Stage) -> bool:
    """Give the manifest the marker's name; False when another attempt was first."""
    manifest = stage.directory / _MANIFEST
    try:
        os.link(manifest, stage.marker)
    except FileExistsError:
        return _is_same(manifest, stage.marker)  # a file server may do it and lose the answer
    except FileNotFoundError:
        _tidied()
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy = stage.directory / f"{_MANIFEST}.{secrets.token_hex(4)}"
        shutil.copyfile(manifest, copy)
        _sync(copy)
        try:
            _rename(copy, stage.marker, _RENAME_NOREPLACE)
        except FileExistsError:
            copy.unlink(missing_ok=True)
            return False
        except FileNotFoundError:
            _tidied()
    return True


def _roll_forward(stage: Stage, manifest: dict[str, Any], may_replace: bool, fault: Fault) -> Publication:
    """Bring the winner's files under their final names, as far as they are not there yet."""
    winner = replace(stage, attempt_id=AttemptId(manifest["attempt"]))
    _require_plain_name(winner.attempt_id)
    parents = {stage.final}
    for entry in manifest["files"]:
        name = entry["name"]
        fault(f"publish {name}")
        parent = _require_inside(stage, name)
        if parent != stage.final:
            parent.mkdir(parents=True, exist_ok=True)
            parents |= {above for above in (parent, *parent.parents) if above.is_relative_to(stage.final)}
        _publish_one(winner, stage.attempt_id, entry, may_replace, fault)
    fault("sync directories")
    for parent in parents:
        _sync(parent)
    fault("published")
    return Publication(
        by=winner.attempt_id,
        files=tuple(
            PublishedFile(
                path=os.path.join(stage.shown, entry["name"]),
                size_bytes=entry["size_bytes"],
                width=entry.get("width"),
                height=entry.get("height"),
            )
            for entry in manifest["files"]
        ),
    )


def _publish_one(
    winner: Stage, mover: AttemptId, entry: dict[str, Any], may_replace: bool, fault: Fault
) -> None:
    name = entry["name"]
    staged, final = winner.directory / name, winner.final / name
    for _ in range(_MANY):
        here, there = _status(staged), _status(final)
        if here is None:
            if there is not None and stat.S_ISREG(there.st_mode) and _is_this(there, entry):
                return  # published, and the winner's stage is gone
            if not winner.root.is_dir():
                _tidied()
            what = "somebody removed it" if there is None else "somebody changed it since"
            raise StagingError(
                Outcome.STORAGE, f"{name} was finished by attempt {winner.attempt_id}, but {what}"
            )
        if there is None:
            try:
                _link(staged, final, fault)
            except (FileExistsError, FileNotFoundError):
                continue
            return
        if os.path.samestat(here, there):
            return
        refuse_overwrite(winner, [name], may_replace=may_replace)
        _move_aside(winner, mover, name, fault)
    raise StagingError(Outcome.STORAGE, f"{name} is being written by somebody else")


def _link(staged: Path, final: Path, fault: Fault) -> None:
    """Give the staged file its final name; FileExistsError when that is taken."""
    try:
        fault("link")
        os.link(staged, final, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename(staged, final, _RENAME_NOREPLACE)


def _move_aside(winner: Stage, mover: AttemptId, name: str, fault: Fault) -> None:
    """Swap the file in the way with the winner's: the final name holds a whole file at every moment.

    What was there ends in `.farm-replaced`. Two who do this at once swap the winner's file with itself.
    """
    staged, final = winner.directory / name, winner.final / name
    base = winner.final / REPLACED / winner.job_uid / mover
    aside = base / name
    if _is_same(aside, staged):
        aside.unlink(missing_ok=True)  # left by a crash before the swap
    elif os.path.lexists(aside):
        aside = base / secrets.token_hex(4) / name
    aside.parent.mkdir(parents=True, exist_ok=True)
    fault("move aside")
    try:
        os.link(staged, aside, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with suppress(FileNotFoundError):
            _rename(final, aside, _RENAME_NOREPLACE)
        return
    fault("swap")
    try:
        _rename(aside, final, _RENAME_EXCHANGE)
    except FileNotFoundError:
        aside.unlink(missing_ok=True)
        return
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            aside.unlink(missing_ok=True)
            raise
        aside = _replace_without_swap(aside, final, base / secrets.token_hex(4) / name)
    # Who did the same may be done already, and have removed the winner's stage.
    if _is_same(aside, staged) or _is_same(aside, final):
        aside.unlink(missing_ok=True)
    _sync(aside.parent)


def _replace_without_swap(new: Path, final: Path, kept: Path) -> Path:
    """For NFS: keep what is there under the name `kept`, then put `new` over it. Returns `kept`."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        os.link(final, kept, follow_symlinks=False)
        os.rename(new, final)
    new.unlink(missing_ok=True)  # still there when both names were one file already
    return kept


def _earlier_generations(stage: Stage) -> set[tuple[str, int]]:
    """(name, size) of files that earlier generations of this task published."""
    found = set()
    for generation in range(1, stage.generation):
        manifest = _read_manifest(replace(stage, generation=generation).marker)
        if manifest is not None:
            found |= {(entry["name"], entry["size_bytes"]) for entry in manifest["files"]}
    return found


def _is_published(final: Path, manifest: dict[str, Any]) -> bool:
    statuses = ((entry, _status(final / entry["name"])) for entry in manifest["files"])
    return all(status is not None and _is_this(status, entry) for entry, status in statuses)


def _is_this(status: os.stat_result, entry: dict[str, Any]) -> bool:
    """Whether a file is the one that a manifest names, and not one of another generation that is as long.

    Links and renames keep the inode. Manifests of older versions have none.
    """
    inode = entry.get("inode")
    return status.st_size == entry["size_bytes"] and inode in (None, status.st_ino)


def _inode(path: Path) -> int | None:
    status = _status(path)
    return None if status is None else status.st_ino


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest["files"], list) and isinstance(manifest["attempt"], str):
            return dict(manifest)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass
    raise StagingError(Outcome.STORAGE, f"{path} is damaged; remove it and requeue the task")


def _require_inside(stage: Stage, name: str) -> Path:
    """The directory that `name` is published into; raises StagingError when a link leads out of it."""
    check_names([name])
    parent = (stage.final / name).parent
    if parent != stage.final and not Path(os.path.realpath(parent)).is_relative_to(stage.final):
        raise StagingError(
            Outcome.STORAGE, f"{parent} is a symbolic link that leads out of the output directory"
        )
    return parent


def _require_plain_name(name: str) -> None:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise StagingError(Outcome.JOB_ERROR, f"{name!r} cannot name a directory")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_same(one: Path, other: Path) -> bool:
    first, second = _status(one), _status(other)
    return first is not None and second is not None and os.path.samestat(first, second)


def _is_real_directory(path: Path) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _sync(path: Path) -> None:
    """Make a file, or the names in a directory, survive a power cut."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do it for a directory
            raise
    finally:
        os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)


def _rename(source: Path, target: Path, flag: int) -> None:
    """renameat2(2); raises OSError, ENOSYS where the C library has none."""
    if not hasattr(_libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(source), None, os.fspath(target))


def _tidied() -> NoReturn:
    raise StagingError(Outcome.CANCELLED, "the job has been tidied away")


@contextmanager
def as_storage(shown: str) -> Iterator[None]:
    """Let an OSError out as a StagingError of class STORAGE. shown: the output directory, for people."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else shown
        reasons = {
            errno.ENOSPC: f"the disk of {shown} is full",
            errno.EDQUOT: f"the disk quota of {shown} is used up",
            errno.EROFS: f"{shown} is read-only",
            errno.EINVAL: f"{shown} allows neither hard links nor renaming without overwriting",
        }
        text = reasons.get(error.errno or 0, f"{where}: {error.strerror}")
        raise StagingError(Outcome.STORAGE, text) from error
