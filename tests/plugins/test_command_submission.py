from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.model.frames import expand_pattern
from farm.model.plugin import SubmitOptions
from farm.model.work import Submission
from plugins.command.plugin import MAX_PADDED_FRAMES, PLUGIN
from tests.plugins.expanded import tasks

CWD = Path("/shöw dir")


def submit(*words: str, frames: tuple[int, ...] = (), output: str | None = None) -> Submission:
    options = SubmitOptions(cwd=CWD, arguments=words[1:], frames=frames, output=output)
    return PLUGIN.submission(Path(words[0]), options)


def test_a_plain_command_is_one_exclusive_task() -> None:
    made = submit("true")
    assert tasks(made) == [{}]
    assert made.outputs == ()
    assert PLUGIN.preview(made).command == ("true",)
    assert PLUGIN.preview(made).first_output is None


def test_a_frame_is_put_into_its_argument_as_a_number() -> None:
    made = submit("echo", "a b", "+K{frame}", frames=(3, -1, 2))
    assert tasks(made) == [{"Frame": "-1"}, {"Frame": "2"}, {"Frame": "3"}]
    assert PLUGIN.preview(made).command == ("echo", "a b", "+K-1")


def test_a_padded_frame_goes_with_the_frame() -> None:
    made = submit("echo", "{frame:04}", "{frame}", frames=(7, 12))
    assert tasks(made) == [{"Frame": "7", "Frame4": "0007"}, {"Frame": "12", "Frame4": "0012"}]
    assert PLUGIN.preview(made).command == ("echo", "0007", "7")


def test_numbers_that_are_long_enough_need_no_padding() -> None:
    frames = tuple(range(1001, 1001 + 2 * MAX_PADDED_FRAMES))
    assert len(tasks(submit("echo", "{frame:04}", frames=frames))) == 2 * MAX_PADDED_FRAMES


def test_too_many_padded_frames_are_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"use \{frame\} and a single #"):
        submit("echo", "{frame:04}", frames=tuple(range(MAX_PADDED_FRAMES + 1)))
    assert len(tasks(submit("x", "{output}", output="f_#.png", frames=tuple(range(5000))))) == 5000


def test_an_output_makes_the_job_staged_and_names_each_file() -> None:
    made = submit("povray", "+K{frame}", "+O{output}", frames=(1, 2), output="ü {x}/f {{.png")
    (output,) = made.outputs
    assert (output.step, output.directory_parameter, output.frames_parameter) == ("run", "OutputDir", "Frame")
    assert output.file_pattern == "f {{_####.png"
    assert output.is_image
    shown = PLUGIN.preview(made)
    assert shown.first_output == "/shöw dir/ü {x}/f {{_0001.png"
    assert shown.command == ("povray", "+K1", f"+O{shown.first_output}")
    assert len(tasks(made)) == 2


def test_files_that_are_no_pictures_are_not_decoded() -> None:
    assert not submit("cp", "a", "{output}", output="a.abc").outputs[0].is_image
    assert not submit("cp", "a", "{output}", output="noextension").outputs[0].is_image


@pytest.mark.parametrize(
    ("words", "options", "part"),
    [
        (("x",), {"frames": (1,)}, "put {frame}"),
        (("x", "{frame}"), {}, "give --frames"),
        (("x", "{output}"), {}, "give --output"),
        (("x",), {"output": "a.png"}, "put {output}"),
        (("awk", "{print $1}"), {}, "twice"),
        (("x", "a{"), {}, "twice"),
        (("x", "{output}"), {"output": "f_####.png"}, "give --frames"),
        (("x", "a\0b"), {}, "cannot be passed on"),
        (("x", "\udcff"), {}, "cannot be passed on"),
        (("",), {}, "no command"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_what_to_do(
    words: tuple[str, ...], options: dict[str, object], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        submit(*words, **options)  # type: ignore[arg-type]


def test_a_chunk_size_is_refused() -> None:
    with pytest.raises(UserError, match="chunk size"):
        PLUGIN.submission(Path("true"), SubmitOptions(cwd=CWD, chunk_size=2))


def test_a_script_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "mach was.sh").write_text("echo")
    made = PLUGIN.submission(Path("mach was.sh"), SubmitOptions(cwd=tmp_path))
    assert PLUGIN.preview(made).command == (str(tmp_path / "mach was.sh"),)


@settings(deadline=None)
@given(st.lists(st.text(alphabet="{}aü $'\"\\;|&*-", max_size=8), max_size=4), st.integers(-99, 99))
def test_any_text_reaches_the_command_as_it_was_typed(texts: list[str], frame: int) -> None:
    doubled = [text.replace("{", "{{").replace("}", "}}") for text in texts]
    made = submit(
        "x", *doubled, *(text + "{frame:03}" + text for text in doubled), "{frame}", frames=(frame,)
    )
    tasks(made)
    padded = expand_pattern("###", frame)
    assert PLUGIN.preview(made).command == (
        "x",
        *texts,
        *(text + padded + text for text in texts),
        str(frame),
    )
