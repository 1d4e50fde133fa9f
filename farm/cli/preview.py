"""`farm preview`: a contact sheet of a job's frames, in the terminal where it can show one."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from farm.cli import inline_image, show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.contact_sheet import contact_sheet
from farm.cli.naming import check_frames, find_job
from farm.errors import NotFound, UserError
from farm.model.attempts import Attempt
from farm.model.states import AttemptState
from farm.model.work import Task
from farm.settings import TERMINAL_VARIABLES, inherited_environment
from farm.text import plural

_PAGE: Final = 1_000
"""The API's largest: of a job with more tasks the newest frames are looked at."""
_MUTE: Final = ("dumb", "", None)
"""What TERM says of terminals that would print a question instead of answering it."""


def preview(
    client: Client,
    text: str,
    *,
    frames: str | None,
    count: int,
    columns: int,
    output: Path | None,
    inline: str,
    state_dir: Path,
    is_json: bool,
) -> None:
    """Raises NotFound when nothing can be shown, with the reason."""
    wanted = check_frames(frames)
    view, _ = find_job(client, text)
    job = view.job
    answers = client.get(f"/jobs/{job.id}/attempts", state=(AttemptState.SUCCEEDED,), limit=_PAGE)["items"]
    attempts = [read(Attempt, answer) for answer in answers]
    if wanted is not None:
        chosen = {read(Task, answer).id for answer in client.items(f"/jobs/{job.id}/tasks", frames=wanted)}
        attempts = [attempt for attempt in attempts if attempt.task_id in chosen]
    pictures = spread_out(sorted(pictures_of(attempts), key=natural), count)
    if not pictures:
        none = "no frame of it is done yet" if not view.counts.done else "none of its files is a picture"
        raise NotFound(f"job {job.id} {show.shown(job.name, 60)} has nothing to show: {none}")
    here = [path for path in map(Path, pictures) if path.is_file()]
    if not here:
        raise NotFound(
            f"the frames of job {job.id} are not on this machine: {show.shown(pictures[0], 200)} "
            "does not exist here; look where the farm's files are mounted"
        )
    path = output or state_dir / "previews" / f"job-{job.id}.png"
    _make(here, path, columns=columns)
    if is_json:
        show.data({"path": str(path), "frames": [str(each) for each in here]})
        return
    is_shown = inline != "no" and put_picture(path, wanted=inline)
    missing = len(pictures) - len(here)
    told = f"{plural(len(here), 'frame')} of job {job.id} {job.name}"
    told += f", {missing} more are not on this machine" if missing else ""
    if is_shown:
        show.note(told)
    else:
        show.note(f"{told}:")
    show.line(str(path))


def _make(frames: Sequence[Path], path: Path, *, columns: int) -> None:
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".exr"):
        raise UserError(f"--output {show.shown(str(path), 100)}: give a picture's name, such as sheet.png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {path.parent}: {error.strerror}") from error
    contact_sheet(frames, path, columns=columns)


def pictures_of(attempts: Iterable[Attempt]) -> list[str]:
    """Paths of the accepted files that were decoded as pictures, each once."""
    return list(dict.fromkeys(file.path for attempt in attempts for file in attempt.files if file.width))


def natural(path: str) -> list[tuple[int, int, str]]:
    """A sort key: frame 9 before frame 10."""
    parts = re.split(r"([0-9]+)", path)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def spread_out(paths: Sequence[str], count: int) -> list[str]:
    """`count` of them, the first and the last among them, at even distances."""
    if len(paths) <= count:
        return list(paths)
    if count == 1:
        return [paths[len(paths) // 2]]
    return [paths[round(index * (len(paths) - 1) / (count - 1))] for index in range(count)]


def put_picture(path: Path, *, wanted: str = "auto") -> bool:
    """Show it in the terminal; whether it could."""
    if wanted == "auto" and not sys.stdout.isatty():
        return False
    chosen = wanted
    if wanted == "auto":
        environment = inherited_environment(TERMINAL_VARIABLES)
        chosen = inline_image.protocol(environment) or ""
        if not chosen and environment.get("TERM") not in _MUTE:
            chosen = inline_image.protocol(environment, inline_image.ask_terminal()) or ""
    if chosen in ("kitty", "iterm"):
        make = inline_image.kitty if chosen == "kitty" else inline_image.iterm
        for piece in make(_png(path)):
            sys.stdout.write(piece)
    elif chosen == "sixel":
        for piece in inline_image.sixel(*_pixels(path)):
            sys.stdout.write(piece)
    else:
        return False
    sys.stdout.flush()
    return True


def _png(path: Path) -> bytes:
    """The picture as PNG, which both protocols take, whatever the file is."""
    if path.suffix.lower() == ".png":
        return path.read_bytes()
    import OpenImageIO as oiio  # noqa: N813 - its customary name

    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        copy = Path(folder) / "sheet.png"
        image = oiio.ImageBuf(str(path))
        if not image.write(str(copy), oiio.UINT8):
            raise UserError(f"{path} cannot be shown: {image.geterror()}")
        return copy.read_bytes()


def _pixels(path: Path) -> tuple[int, int, bytes]:
    import OpenImageIO as oiio  # noqa: N813 - its customary name

    image = oiio.ImageBuf(str(path))
    spec = image.spec()
    pixels = image.get_pixels(oiio.UINT8)
    if pixels is None:
        raise UserError(f"{path} cannot be read: {image.geterror()}")
    return spec.width, spec.height, pixels[:, :, :3].tobytes()
