"""The runner against a stand-in for the bpy module: which calls its options make, in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from plugins.blender.bpy_runner import Runner, Stop, frame_number, frame_numbers


class FakeBlender:
    """Keeps what was rendered: (frame, output path)."""

    def __init__(self) -> None:
        self.rendered: list[tuple[int, str]] = []
        self.opened: list[tuple[str, bool]] = []
        image = SimpleNamespace(file_format="FFMPEG")
        self.scene = SimpleNamespace(
            name="Scene",
            frame_start=1,
            frame_end=10,
            frame_step=1,
            render=SimpleNamespace(
                filepath="/tmp/", engine="CYCLES", image_settings=image, use_file_extension=True
            ),
        )
        self.context = SimpleNamespace(
            scene=self.scene,
            preferences=SimpleNamespace(filepaths=SimpleNamespace(use_scripts_auto_execute=False)),
        )
        self.data = SimpleNamespace(scenes={"Scene": self.scene})
        self.ops = SimpleNamespace(
            wm=SimpleNamespace(open_mainfile=self._open), render=SimpleNamespace(render=self._render)
        )

    def _open(self, *, filepath: str, use_scripts: bool) -> None:
        if "gone" in filepath:
            raise RuntimeError(f'Error: Cannot read file "{filepath}"')
        self.opened.append((filepath, use_scripts))

    def _render(self, *, animation: bool, scene: str) -> set[str]:
        frames = range(self.scene.frame_start, self.scene.frame_end + 1, self.scene.frame_step)
        self.rendered += [(frame, self.scene.render.filepath) for frame in frames]
        return {"FINISHED"}


def run(*arguments: str) -> FakeBlender:
    fake = FakeBlender()
    Runner(fake, list(arguments)).run()
    return fake


def test_options_act_in_the_order_they_stand_in() -> None:
    fake = run("-b", "/s.blend", "-f", "1", "-o", "/x", "-f", "2", "--", "-f", "3")
    assert fake.rendered == [(1, "/tmp/"), (2, "/x")]


def test_an_animation_takes_start_end_and_step() -> None:
    fake = run("-b", "/s.blend", "-s", "3", "-e", "+4", "-j", "2", "-a")
    assert [frame for frame, _ in fake.rendered] == [3, 5, 7]


def test_single_frames_leave_the_range_as_it_was() -> None:
    fake = run("-b", "/s.blend", "-f", "2,4..5", "-a")
    assert [frame for frame, _ in fake.rendered] == [2, 4, 5, *range(1, 11)]


def test_scripts_in_the_scene_run_only_when_told() -> None:
    assert run("-b", "/s.blend").opened == [("/s.blend", False)]
    assert run("-b", "-y", "/s.blend").opened == [("/s.blend", True)]
    assert run("-b", "--enable-autoexec", "--disable-autoexec", "/s.blend").opened == [("/s.blend", False)]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("-f", "abc"), 2),
        (("-f",), 2),
        (("--nonsense",), 2),
        (("-s", "10", "-e", "5", "-a"), 2),
        (("-S", "Nobody"), 1),
        (("/gone.blend",), 1),
        (("--python-exit-code", "7", "--python-expr", "1/0"), 7),
    ],
)
def test_a_mistake_ends_with_a_status_of_its_own(arguments: tuple[str, ...], status: int) -> None:
    with pytest.raises(Stop) as stop:
        run("-b", "/s.blend", *arguments)
    assert stop.value.status == status


def test_a_script_may_fail_when_nobody_asked_for_its_status() -> None:
    assert run("--python-expr", "1/0", "-f", "1").rendered == [(1, "/tmp/")]


def test_a_script_file_is_run_as_main(tmp_path: Path) -> None:
    script = tmp_path / "ü x.py"
    script.write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'done')!r}).write_text(__name__)", encoding="utf-8"
    )
    run("-P", str(script))
    assert (tmp_path / "done").read_text() == "__main__"


def test_the_format_has_blenders_short_names() -> None:
    assert run("-F", "TGA").scene.render.image_settings.file_format == "TARGA"


def test_signed_frames_count_from_the_ends_of_the_scene() -> None:
    assert frame_number("+2", 1, 10) == 3
    assert frame_number("-2", 1, 10) == 9
    assert frame_numbers("1,3..5", 1, 10) == [1, 3, 4, 5]
