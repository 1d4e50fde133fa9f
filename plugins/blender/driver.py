"""Renders the frames of a task, inside Blender 3.4 to 5.0: with the standard library and bpy only.

Alone it does the one task of its arguments. Below `plugins/keeper.py` it does one task after the other, with
the scene that Blender has loaded.

A template carries this file as text, where double braces would be read as expressions: none may stand here.

Why not `blender -f`: it counts negative frames from the scene's end, clamps frames that are out of range,
goes on with the wrong scene or format, says nothing of missing textures, and exits 0 when it could not write.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

EXIT_REFUSED = 66
PROBE_SAMPLES = 0.05
PROBE_ENOUGH_S = 5.0
"""A probe that rendered for less is repeated with more samples: the GPU must be seen busy for seconds."""
PROBE_LIMIT_S = 20.0
EXIT_BROKEN = 70
KEEPER = "RIDGELINE_KEEPER"
"""The variable in which the keeper names its socket."""
MAX_FRAME = 1048574
FORMATS = {
    ".png": ("PNG",),
    ".exr": ("OPEN_EXR", "OPEN_EXR_MULTILAYER"),
    ".jpg": ("JPEG",),
    ".jpeg": ("JPEG",),
    ".tif": ("TIFF",),
    ".tiff": ("TIFF",),
    ".tga": ("TARGA", "TARGA_RAW"),
    ".webp": ("WEBP",),
    ".bmp": ("BMP",),
    ".hdr": ("HDR",),
}
"""Extension to the formats that write it; the first is taken when the scene is set to none of them."""

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
_PIECE = re.compile(r"(-?[0-9]+)(?:-(-?[0-9]+)(?::([0-9]+))?)?\Z")


class Refusal(Exception):
    """The task cannot be rendered as asked; the text says why, in one line."""

    is_final = False
    """Trying again, on another node too, cannot help."""


class FinalRefusal(Refusal):
    is_final = True


def frames_of(text: str) -> list[int]:
    """The frames of an OpenJD range: "1-9:2,20" gives [1, 3, 5, 7, 9, 20]."""
    frames: list[int] = []
    for piece in text.split(","):
        match = _PIECE.match(piece.strip())
        if match is None:
            raise FinalRefusal(f"cannot read the frames {text!r}")
        first, last, step = match.groups()
        frames += range(int(first), int(first if last is None else last) + 1, int(step or 1))
    outside = [frame for frame in frames if abs(frame) > MAX_FRAME]
    if outside:
        raise FinalRefusal(f"Blender has no frame {outside[0]}: frames go from -{MAX_FRAME} to {MAX_FRAME}")
    return frames


def file_name(pattern: str, frame: int) -> str:
    """`pattern` with each run of `#` replaced by the frame, padded to its length: -7 in "####" is "-0007"."""

    def digits(match: re.Match[str]) -> str:
        return ("-" if frame < 0 else "") + str(abs(frame)).zfill(len(match.group()))

    return re.sub("#+", digits, pattern)


def say(key: str, text: object) -> None:
    """Print a line for the farm, whatever the locale and whoever else buffers standard output."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in str(text))
    os.write(1, f"ridgeline| {key} {shown[:3000]}\n".encode())


def set_still_format(scene: Any, formats: Sequence[str]) -> None:
    """Make `scene` write one of `formats`. Settings stay as they are when it does already."""
    settings = scene.render.image_settings
    if settings.file_format in formats:
        return
    if hasattr(settings, "media_type"):  # since 5.0 the list of formats depends on it
        settings.media_type = "MULTI_LAYER_IMAGE" if "MULTILAYER" in formats[0] else "IMAGE"
    try:
        settings.file_format = formats[0]
    except TypeError as error:
        raise Refusal(f"this Blender cannot write {formats[0]}") from error


def literal_path(path: str) -> str:
    """`path` for a property in which braces are template expressions since 4.5."""
    import bpy

    if bpy.app.version < (4, 5, 0):
        return path
    return path.replace("{", "{" * 2).replace("}", "}" * 2)


def missing_files() -> Iterator[tuple[str, str, str]]:
    """(kind, name, path) of each file that the scene uses and that is not there; 3.4 is silent about most.

    The path is as Blender's own messages have it, without "..": one file is told once.
    """
    import bpy

    for library in bpy.data.libraries:
        path = bpy.path.abspath(library.filepath)
        if not library.packed_file and not os.path.exists(path):
            yield "library", library.name, os.path.normpath(path)
    kinds = (
        ("image", bpy.data.images),
        ("clip", bpy.data.movieclips),
        ("volume", bpy.data.volumes),
        ("cache", bpy.data.cache_files),
        ("font", bpy.data.fonts),
    )
    for kind, items in kinds:
        for item in items:
            if kind == "image" and item.source not in ("FILE", "SEQUENCE", "MOVIE", "TILED"):
                continue
            if not item.users or not item.filepath or item.filepath == "<builtin>":
                continue
            if getattr(item, "packed_file", None):
                continue
            path = bpy.path.abspath(item.filepath, library=item.library)
            tiles = item.tiles if kind == "image" and item.source == "TILED" else ()
            paths = [path.replace("<UDIM>", str(tile.number)) for tile in tiles] or [path]
            for one in paths:
                if not os.path.exists(one):
                    yield kind, item.name, os.path.normpath(one)


def use_device(scene: Any, kind: str) -> None:
    """Let Cycles render on the CPU, or on all GPUs that this Blender can use."""
    import bpy

    if scene.render.engine != "CYCLES":
        return
    if kind == "CPU":
        scene.cycles.device = "CPU"
        return
    preferences = bpy.context.preferences.addons["cycles"].preferences
    for backend in ("OPTIX", "CUDA", "HIP", "METAL", "ONEAPI"):
        try:
            preferences.compute_device_type = backend
        except TypeError:
            continue  # not in this build
        preferences.get_devices()
        gpus = [device for device in preferences.devices if device.type == backend]
        if gpus:
            for device in preferences.devices:
                device.use = device.type == backend
            scene.cycles.device = "GPU"
            say("device", f"{backend} {', '.join(device.name for device in gpus)}")
            return
    raise Refusal("Cycles was asked to render on a GPU, and this Blender finds none")


def report_scene(scene: Any) -> None:
    """Print what people and the farm should know before the first frame."""
    import bpy

    if tuple(bpy.data.version[:2]) > tuple(bpy.app.version[:2]):
        saved = ".".join(str(part) for part in bpy.data.version[:2])
        say("warning", f"the scene was saved by Blender {saved}, this is {bpy.app.version_string}")
    if bpy.app.autoexec_fail:
        say(
            "warning",
            f"a script of the scene was not run ({bpy.app.autoexec_fail_message}): --trust-scripts lets it",
        )
    for kind, name, path in missing_files():
        say("missing", f"{kind} {name!r}: {path}")
    render = scene.render
    if not (render.use_border and render.use_crop_to_border):
        percent = render.resolution_percentage
        say("size", f"{render.resolution_x * percent // 100} {render.resolution_y * percent // 100}")
    layers = 1 if render.use_single_layer else sum(1 for layer in scene.view_layers if layer.use)
    say("layers", max(layers, 1))


def report_progress() -> None:
    """Since 5.0 Blender prints nothing while it renders, but still tells handlers."""
    import bpy

    last = {True: 0.0, False: 0.0}  # a first sample right after "Synchronizing" must not be left out

    def on_stats(stats: object, *_others: object) -> None:
        now = time.monotonic()
        is_sample = "Sample " in str(stats)
        if isinstance(stats, str) and now - last[is_sample] > 0.25:
            last[is_sample] = now
            say("stats", stats)

    if bpy.app.version >= (5, 0, 0) and not any(
        each.__name__ == on_stats.__name__ for each in bpy.app.handlers.render_stats
    ):
        bpy.app.handlers.render_stats.append(on_stats)


def render_frames(
    scene: Any, frames: Collection[int], directory: str, pattern: str, part: Part | None = None
) -> None:
    """Raises Refusal at the first frame that is not written."""
    import bpy

    for index, frame in enumerate(frames, start=1):
        name = file_name(pattern, frame)
        if part is not None:
            name = part.file(name)
        path = os.path.join(directory, name)
        say("frame", f"{index} of {len(frames)}: {frame}")
        started = time.monotonic()
        scene.frame_set(frame)
        scene.render.filepath = literal_path(path)
        try:
            result = bpy.ops.render.render(write_still=True, scene=scene.name)
        except RuntimeError as error:
            text = " ".join(str(error).split()).removeprefix("Error: ")
            if "no camera" in text:
                raise FinalRefusal(f"scene {scene.name!r} has no camera") from error
            if "OpenImageDenois" in text:  # Debian's Blender; new scenes have denoising switched on
                text = "this Blender has no OpenImageDenoise, which the scene's denoising needs:"
                text += " switch it off (Render > Sampling > Denoise), or use a Blender that has it"
            raise Refusal(f"frame {frame}: {text}") from error
        if "FINISHED" not in result:
            raise Refusal(f"frame {frame}: the render was cancelled")
        if not os.path.isfile(path) or os.path.getsize(path) == 0:
            raise Refusal(f"frame {frame}: Blender did not write {name} (is the disk full?)")
        say("saved", f"{index} of {len(frames)}: {name} in {time.monotonic() - started:.2f} s")


class Part:
    """A piece of each frame: a tile, or all pixels with a share of the samples. Cycles only."""

    originals: ClassVar[dict[str, tuple[int, bool]]] = {}
    """Scene name to samples and denoising as the file has them: a kept Blender renders many parts."""

    def __init__(self, scene: Any, number: int, tiles: str, chunks: int) -> None:
        """number: from 1. tiles: "COLUMNSxROWS", or nothing for one of `chunks`. Raises Refusal."""
        render = scene.render
        if scene.name not in self.originals:
            refuse_what_joins_pixels(scene)
            self.originals[scene.name] = scene.cycles.samples, scene.cycles.use_denoising
        self.number = number
        samples, _ = self.originals[scene.name]
        width = render.resolution_x * render.resolution_percentage // 100
        height = render.resolution_y * render.resolution_percentage // 100
        columns, rows = map(int, tiles.split("x")) if tiles else (1, 1)
        if tiles and (columns > width or rows > height):
            raise FinalRefusal(f"a frame of {width} x {height} pixels has no {tiles} tiles")
        if chunks > samples:
            raise FinalRefusal(f"{samples} samples make no {chunks} chunks: give {samples} at most")
        row, column = divmod(number - 1 if tiles else 0, columns)
        left, right = width * column // columns, width * (column + 1) // columns
        top, bottom = height * row // rows, height * (row + 1) // rows
        first = samples * (number - 1) // chunks if chunks > 1 else 0
        last = samples * number // chunks if chunks > 1 else samples
        self.size = right - left, bottom - top
        note = dict(
            part=number,
            size=[width, height],
            box=[left, top, right, bottom],
            samples=[first, last, samples],
        )
        if tiles:
            self._set_border(render, left, width, right, height - bottom, height, height - top)
        else:
            self._set_samples(scene.cycles, first, last, samples)
        self._set_format(scene)
        scene.cycles.use_denoising = False  # once, when the parts are together
        render.use_compositing = render.use_sequencer = False
        render.metadata_input = "SCENE"
        render.use_stamp_note, render.stamp_note_text = True, json.dumps(note)

    @staticmethod
    def _set_border(
        render: Any, left: int, width: int, right: int, bottom: int, height: int, top: int
    ) -> None:
        """Blender cuts the border's product with the size off to whole pixels: aim at their middle."""
        render.use_border = render.use_crop_to_border = True
        render.border_min_x = (left + 0.5) / width if left else 0.0
        render.border_max_x = (right + 0.5) / width if right < width else 1.0
        render.border_min_y = (bottom + 0.5) / height if bottom else 0.0
        render.border_max_y = (top + 0.5) / height if top < height else 1.0

    @staticmethod
    def _set_samples(cycles: Any, first: int, last: int, total: int) -> None:
        if cycles.use_adaptive_sampling:
            say("warning", "adaptive sampling is off: chunks of samples have all of them")
            cycles.use_adaptive_sampling = False
        cycles.time_limit = 0.0
        cycles.sample_offset = first
        if hasattr(cycles, "use_sample_subset"):  # since 4.5 the offset alone does nothing
            cycles.samples = total
            cycles.use_sample_subset = True
            cycles.sample_subset_length = last - first
        else:
            if cycles.sampling_pattern not in ("SOBOL", "PROGRESSIVE_MULTI_JITTER", "TABULATED_SOBOL"):
                say(
                    "warning", "the sampling pattern is Tabulated Sobol: this Blender cannot split blue noise"
                )
                cycles.sampling_pattern = "TABULATED_SOBOL"
            cycles.samples = last - first

    def _set_format(self, scene: Any) -> None:
        """32-bit EXR; with all passes where the scene writes them, and with what a denoiser needs."""
        _, denoises = self.originals[scene.name]
        is_deep = denoises or scene.render.image_settings.file_format == "OPEN_EXR_MULTILAYER"
        set_still_format(scene, ("OPEN_EXR_MULTILAYER",) if is_deep else ("OPEN_EXR",))
        settings = scene.render.image_settings
        settings.color_depth, settings.exr_codec = "32", "ZIP"
        if not is_deep:
            settings.color_mode = "RGBA"
        for layer in scene.view_layers:
            layer.cycles.denoising_store_passes = layer.cycles.denoising_store_passes or denoises

    def file(self, name: str) -> str:
        """As `farm.model.frames.part_name` has it."""
        bare, extension = os.path.splitext(name)
        return f"{bare}.part{self.number:03d}{extension}"


def refuse_what_joins_pixels(scene: Any) -> None:
    """Raise FinalRefusal when parts of a frame would not make the frame."""
    import bpy

    render = scene.render
    if render.engine != "CYCLES":
        raise FinalRefusal(f"only Cycles renders parts of a frame, and the scene's engine is {render.engine}")
    if render.use_border:
        raise FinalRefusal("the scene renders a region: turn Render Region off, or render whole frames")
    if render.use_multiview:
        raise FinalRefusal("the scene renders two eyes: turn Stereoscopy off, or render whole frames")
    tree = getattr(scene, "compositing_node_group", None) if bpy.app.version >= (5, 0, 0) else None
    is_compositing = tree is not None if bpy.app.version >= (5, 0, 0) else scene.use_nodes
    if render.use_compositing and is_compositing:
        raise FinalRefusal("the scene is composited: turn Compositing off, or render whole frames")
    editor = scene.sequence_editor
    strips = getattr(editor, "strips", None) or getattr(editor, "sequences", None)
    if render.use_sequencer and strips:
        raise FinalRefusal("the scene's picture is the sequencer's: turn it off, or render whole frames")


def finish(scene: Any, frame: int, assembled: str, path: str) -> None:
    """Denoise the frame that was put together, and write it as the scene says. Raises Refusal."""
    scene.frame_set(frame)
    denoises = bool(scene.cycles.use_denoising)
    if path.lower().endswith(".exr") and not denoises:
        shutil.copyfile(assembled, path)  # with all its passes, and 32 bits
    else:
        compose(scene, assembled, path, denoises=denoises)


def compose(scene: Any, assembled: str, path: str, *, denoises: bool) -> None:
    """Write the picture as Blender writes a frame: by the compositor, which here renders nothing.

    So it gets the scene's view transform and dither. Raises Refusal.
    """
    import bpy

    image = bpy.data.images.load(assembled)
    if bpy.app.version >= (5, 0, 0):
        tree = bpy.data.node_groups.new("Finish", "CompositorNodeTree")
        tree.interface.new_socket("Image", in_out="OUTPUT", socket_type="NodeSocketColor")
        scene.compositing_node_group = tree
        output = tree.nodes.new("NodeGroupOutput")
    else:
        scene.use_nodes = True
        tree = scene.node_tree
        tree.nodes.clear()
        output = tree.nodes.new("CompositorNodeComposite")
    source = tree.nodes.new("CompositorNodeImage")
    source.image = image
    sockets = {each.name: each for each in source.outputs}
    picture = next(sockets[name] for name in ("Combined", "Image") if name in sockets)
    if denoises:
        filtered = tree.nodes.new("CompositorNodeDenoise")
        for wanted, name in (("Albedo", "Denoising Albedo"), ("Normal", "Denoising Normal")):
            if name in sockets:
                tree.links.new(sockets[name], filtered.inputs[wanted])
        tree.links.new(sockets.get("Noisy Image", picture), filtered.inputs["Image"])
        picture = filtered.outputs["Image"]
    tree.links.new(picture, output.inputs[0])
    scene.render.use_compositing, scene.render.use_sequencer = True, False
    scene.render.filepath = literal_path(path)
    try:
        bpy.ops.render.render(write_still=True, scene=scene.name)
    except RuntimeError as error:
        raise Refusal(f"the picture cannot be finished: {' '.join(str(error).split())}") from error
    finally:
        bpy.data.images.remove(image)


def finish_frames(scene: Any, frames: Collection[int], options: argparse.Namespace) -> None:
    for index, frame in enumerate(frames, start=1):
        name = file_name(options.output_pattern, frame)
        say("frame", f"{index} of {len(frames)}: {frame}")
        path = os.path.join(options.output_dir, name)
        finish(scene, frame, os.path.join(options.finish, file_name(options.parts_pattern, frame)), path)
        if not os.path.isfile(path) or os.path.getsize(path) == 0:
            raise Refusal(f"frame {frame}: Blender did not write {name} (is the disk full?)")
        say("saved", f"{index} of {len(frames)}: {name}")


def probe(scene: Any, frame: int, directory: str) -> None:
    """Render the frame at full resolution with few samples, again and with more until it took seconds.

    Nothing that goes wrong here is a failure: the frames themselves will say it.
    """
    import bpy

    scene.render.filepath = literal_path(os.path.join(directory, "probe"))
    kinds = {"CYCLES": ("cycles", "samples")}
    owner, name = kinds.get(scene.render.engine, ("eevee", "taa_render_samples"))
    settings: Any = getattr(scene, owner, None)
    whole = int(getattr(settings, name, 1) or 1)
    count = max(int(whole * PROBE_SAMPLES), 1)
    if scene.render.engine == "CYCLES":
        settings.use_denoising = False  # once a frame, whatever the samples
        settings.time_limit = PROBE_LIMIT_S
    scene.frame_set(frame)
    begin = time.monotonic()
    while True:
        if hasattr(settings, name):
            setattr(settings, name, count)
        say("probe", f"frame {frame} with {count} of {whole} samples")
        try:
            bpy.ops.render.render(write_still=False, scene=scene.name)
        except RuntimeError as error:
            say("warning", f"the probe did not render: {' '.join(str(error).split())}")
            return
        spent_s = time.monotonic() - begin
        if spent_s >= PROBE_ENOUGH_S or count >= whole:
            return
        count = min(count * 4, whole)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="driver", allow_abbrev=False)
    parser.add_argument("--frames", required=True)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--output-pattern", required=True)
    parser.add_argument("--format", default="AUTO")
    parser.add_argument("--scene-name", default="")
    parser.add_argument("--device", choices=("SCENE", "CPU", "GPU"), default="CPU")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--tiles", default="")
    parser.add_argument("--sample-chunks", type=int, default=1)
    parser.add_argument("--finish", default="")
    parser.add_argument("--parts-pattern", default="")
    known, _others = parser.parse_known_args(argv)  # others are for Cycles: --cycles-device
    return known


def run(argv: Sequence[str]) -> None:
    import bpy

    options = arguments(argv)
    frames = frames_of(options.frames)
    if not bpy.data.filepath:
        raise Refusal("no scene was loaded")
    scene = bpy.context.scene
    if options.scene_name:
        scene = bpy.data.scenes.get(options.scene_name)
        if scene is None:
            names = ", ".join(repr(each.name) for each in bpy.data.scenes)
            raise FinalRefusal(f"the file has no scene {options.scene_name!r}, only {names}")
    extension = os.path.splitext(options.output_pattern)[1].lower()
    if extension not in FORMATS:
        raise FinalRefusal(f"no file format is known for {extension!r}")
    set_still_format(scene, FORMATS[extension] if options.format == "AUTO" else (options.format,))
    render = scene.render
    if render.use_multiview and render.image_settings.views_format == "INDIVIDUAL":
        raise FinalRefusal(
            "the scene writes one file for each eye, which the farm cannot check: turn Stereoscopy off"
        )
    render.use_file_extension = False  # the pattern holds it
    render.use_overwrite = True
    render.use_placeholder = False
    if options.device != "SCENE":
        use_device(scene, options.device)
    part = Part(scene, options.part, options.tiles, options.sample_chunks) if options.part else None
    say("loaded", f"{bpy.app.version_string} {scene.name}")
    report_scene(scene)
    if part is not None:
        width, height = part.size
        say("size", f"{width} {height}")
    report_progress()
    if options.probe:
        probe(scene, frames[0], options.output_dir)
        return
    if options.finish:
        finish_frames(scene, frames, options)
        return
    render_frames(scene, frames, options.output_dir, options.output_pattern, part)


def attempt(argv: Sequence[str]) -> int:
    """Do one task; returns the exit status. What went wrong is said."""
    try:
        run(argv)
    except Refusal as refusal:
        say("refused" if refusal.is_final else "error", refusal)
        return EXIT_REFUSED
    except (Exception, SystemExit) as error:  # noqa: BLE001  the edge: nothing else would print the marker
        traceback.print_exc()
        say("error", f"{type(error).__name__}: {error}")
        return EXIT_BROKEN
    return 0


def flush() -> None:
    """Python's buffers and those of the C library, so that no line reaches the next task."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)


def serve(channel: socket.socket) -> None:
    """One task after the other, each with its own output, until the keeper is gone."""
    import bpy

    with contextlib.suppress(OSError, AttributeError, TypeError):  # however the keeper dies, so do we
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    while True:
        data, outputs, _flags, _address = socket.recv_fds(channel, _MOST_BYTES, 2)
        while data and not data.endswith(b"\n"):
            data += channel.recv(_MOST_BYTES)
        if not data:
            return
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
            os.close(output)
        status = attempt(json.loads(data)["arguments"])
        watch = [os.path.abspath(path) for path in bpy.utils.blend_paths(absolute=True)]
        flush()
        os.dup2(null, 1)
        os.dup2(null, 2)
        channel.sendall(json.dumps(dict(status=status, watch=sorted(set(watch)))).encode() + b"\n")


def main() -> None:
    """Ends the process at once: with a handler left, Blender 4.2 crashes in its clean-up and 4.5 hangs."""
    code = 0
    keeper = os.getenv(KEEPER)
    if keeper is None:
        code = attempt(sys.argv[sys.argv.index("--") + 1 :])
    else:
        serve(socket.socket(fileno=int(keeper)))
    import bpy

    shutil.rmtree(bpy.app.tempdir, ignore_errors=True)
    flush()
    os._exit(code)


if __name__ == "__main__":
    main()
