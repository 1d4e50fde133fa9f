"""Options of `farm submit`, and those that `farm change` and `farm resubmit` share with it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from farm.cli.commands.options import JOBS, completing

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="A scene, a template or a bundle."),
]
FrameRange = Annotated[
    str | None,
    typer.Option(
        "--frames",
        "-f",
        metavar="RANGE",
        help="1-100, 1-100x2, 10-1, 1,5,9-12; the scene's own if left out.",
    ),
]
OutputPath = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Where frames go; #### is the frame, // the scene's directory.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p", metavar="NAME=VALUE", help="A template's parameter, or file://values.yaml. Repeatable."
    ),
]
Environments = Annotated[
    list[str] | None,
    typer.Option(
        "--environment",
        "--env",
        metavar="PATH",
        help="An environment template around a template's sessions. Repeatable.",
    ),
]
JobTitle = Annotated[str | None, typer.Option(metavar="TEXT", help="The job's name.")]
Priority = Annotated[
    int | None, typer.Option(metavar="0-100", help="Higher goes first; 50 where nobody says.")
]
Owner = Annotated[str | None, typer.Option(metavar="NAME", help="Whose job it is; you when left out.")]
Preempt = Annotated[
    bool,
    typer.Option("--preempt", help="Stop others' frames for it that lose little, where the farm allows it."),
]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="Whose share of the farm it uses.")]
Pool = Annotated[
    str | None,
    typer.Option(metavar="NAME[,NAME]", help="Only nodes of this pool, or of one of these."),
]
Paused = Annotated[bool, typer.Option("--paused", help="Hold it until `farm resume`.")]
Retries = Annotated[
    int | None,
    typer.Option(metavar="N", help="Failures a frame may have before it is given up; 2 where nobody says."),
]
MaxRunning = Annotated[int | None, typer.Option(metavar="N", help="At most so many frames at once.")]
MaxFailed = Annotated[
    int | None,
    typer.Option(metavar="N", help="Stop the job when more frames failed; 100 where nobody says."),
]
LimitNeeds = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME[=N]",
        help="Each frame takes 1 (or N) of this limit of the farm, such as a licence. Repeatable.",
    ),
]
DependsOn = Annotated[
    list[str] | None,
    typer.Option(metavar="JOB", help="Wait until this job is done. Repeatable.", autocompletion=JOBS),
]
FrameByFrame = Annotated[
    bool,
    typer.Option("--frame-by-frame", help="Each frame waits for the same one before it, not for the whole."),
]
Hooks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Call this hook of the farm when it is done, failed or stalls; see `farm hooks`.",
        autocompletion=completing("hooks"),
    ),
]
OtherLimitNeeds = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME[=N]",
        help="Each frame takes 1 (or N) of this limit, of no others; '' of none. Repeatable.",
    ),
]
OtherHooks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Call this hook of the farm, and no others; '' none. Repeatable.",
        autocompletion=completing("hooks"),
    ),
]
ChunkSize = Annotated[int | None, typer.Option(metavar="N", help="Frames a task; 1 when left out.")]
ChunkSeconds = Annotated[
    str | None,
    typer.Option(
        "--chunk-s",
        metavar="TIME",
        help="As many frames a task as take about so long: 300, 5m. Blender.",
    ),
]
Profile = Annotated[
    Literal["compute", "bandwidth", "balanced"] | None,
    typer.Option(
        help="What the frames cost most: arithmetic or memory traffic; found out where nobody says."
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="The last frame first.")]
PreviewFirst = Annotated[
    bool, typer.Option("--preview-first", help="First, middle and last frame before the rest.")
]
Probe = Annotated[
    bool,
    typer.Option("--probe", help="First find out on a GPU, with few samples, what the frames cost most."),
]
GpuCount = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Each task has N GPUs of its own, and renders on them; else on processors."
    ),
]
Tiles = Annotated[
    str | None,
    typer.Option(
        metavar="COLSxROWS",
        help="Render each frame in tiles on several nodes: 2x2. Blender's Cycles.",
    ),
]
SampleChunks = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Render each frame N times with a share of its samples. Blender's Cycles."
    ),
]
Cold = Annotated[bool, typer.Option("--cold", help="Start the renderer anew for each task.")]
Film = Annotated[
    str | None,
    typer.Option("--film", help="Encode the frames into this film at the end ('' names it after them)."),
]
FilmRate = Annotated[
    str | None,
    typer.Option("--film-rate", help="Frames a second of the film, such as 24 or 30000/1001."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Move files that are in the way aside.")]
TrustScripts = Annotated[bool, typer.Option("--trust-scripts", help="Let scripts in the scene run.")]
Timeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop a frame that takes longer: 600, 90m, 2h.")
]
OnStall = Annotated[
    Literal["warn", "copy", "migrate", "kill"] | None,
    typer.Option(help="What to do about a frame that hangs or crawls; as the farm does where nobody says."),
]
Pretend = Annotated[bool, typer.Option("--pretend", help="Show what would be done; submit nothing.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow to the end; exit 0 only if all is done.")]
NumberAlone = Annotated[bool, typer.Option("--quiet", "-q", help="Print the job's number alone.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Submitting twice with one key makes one job; random when left out."),
]
