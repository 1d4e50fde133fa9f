from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.model.plugin import Reading
from farm.model.states import Outcome
from workers.output import KEPT_BYTES, MAX_LINE, Output, parser_for


class Recorder:
    def __init__(self, parser: object = None, header: str = "") -> None:
        self.texts: list[str] = []
        self.progress: list[tuple[float | None, str]] = []
        self.output = Output(
            send_text=self.texts.append,
            send_progress=lambda fraction, message: self.progress.append((fraction, message)),
            parser=parser,  # type: ignore[arg-type]
            header=header,
        )

    def text(self, *chunks: bytes) -> str:
        for chunk in chunks:
            self.output.feed(chunk)
        self.output.close()
        return "".join(self.texts)


class Listening:
    """A parser that remembers, and answers from a table."""

    def __init__(self, **answers: Reading) -> None:
        self.lines: list[str] = []
        self._answers = answers

    def feed(self, line: str) -> Reading | None:
        self.lines.append(line)
        if line == "explode":
            raise RuntimeError("a bug of ours")
        return self._answers.get(line)


@given(st.text(st.sampled_from("aä\n\r\U0001f600"), max_size=60), st.lists(st.integers(1, 5), min_size=1))
@example("\r\n\n", [1])
def test_lines_are_the_same_however_the_bytes_are_cut(text: str, cuts: list[int]) -> None:
    data = text.encode()
    chunks = []
    for cut in cuts * len(data):
        chunks.append(data[:cut])
        data = data[cut:]
    parser = Listening()
    shown = Recorder(parser).text(*chunks, data)
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert shown == expected + ("\n" if expected and not expected.endswith("\n") else "")
    assert parser.lines == shown.split("\n")[:-1]


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert Recorder().text(b"a\xff\xfeb\0\n", b"\xc3") == "a��b�\n�\n"


def test_a_line_without_end_is_cut_up() -> None:
    parser = Listening()
    text = Recorder(parser).text(*([b"x" * 1000] * 10), b"\nend")
    assert [len(line) for line in text.splitlines()] == [MAX_LINE, MAX_LINE, 10_000 - 2 * MAX_LINE, 3]
    assert parser.lines == text.splitlines()


def test_the_first_and_the_last_part_are_kept_and_the_middle_is_counted() -> None:
    lines = [f"line {number}\n".encode() for number in range(200_000)]
    text = Recorder().text(*(b"".join(lines[at : at + 3000]) for at in range(0, len(lines), 3000)))
    head, left_out, tail = text.partition("… 1.7 MiB left out …\n")
    assert left_out
    assert head.encode() + tail.encode() == b"".join(lines)[: len(head)] + b"".join(lines)[-len(tail) :]
    assert KEPT_BYTES - 100 < len(head) <= KEPT_BYTES
    assert KEPT_BYTES - 100 < len(tail) <= KEPT_BYTES
    assert tail.endswith("line 199999\n")


def test_what_fits_is_shown_whole() -> None:
    data = b"a line\n" * (2 * KEPT_BYTES // 7)
    assert Recorder().text(data[:1000], data[1000:300_000], data[300_000:]).encode() == data


def test_text_is_sent_in_batches() -> None:
    recorder = Recorder()
    recorder.output.feed(b"first\n")
    now = time.monotonic()
    assert recorder.texts == []
    wait = recorder.output.tick(now)
    assert wait is not None
    assert 0 < wait <= 0.2
    recorder.output.tick(now + 0.3)
    assert recorder.texts == ["first\n"]
    assert recorder.output.tick(now + 0.3) is None
    recorder.output.feed(b"x\n" * 10_000)
    assert len(recorder.texts) == 2


def test_the_header_is_shown_only_above_something() -> None:
    assert Recorder(header="$ true").text() == ""
    assert Recorder(header="$ echo").text(b"hello\n") == "$ echo\nhello\n"


def test_readings_are_collected() -> None:
    parser = Listening(
        a=Reading(fraction=0.25, message="tracing", width=8, height=4),
        b=Reading(warning="missing: wood.png", is_rendering=True),
        c=Reading(fatal="no camera", outcome=Outcome.JOB_ERROR, is_final=True),
        d=Reading(fatal="later"),
    )
    recorder = Recorder(parser)
    recorder.output.feed(b"a\nb\nb\nc\nd\n")
    readings = recorder.output.readings
    assert (readings.fraction, readings.message, readings.width, readings.height) == (0.25, "tracing", 8, 4)
    assert readings.warnings == ["missing: wood.png"]
    assert (readings.fatal, readings.outcome, readings.is_final) == ("no camera", Outcome.JOB_ERROR, True)
    assert readings.rendering_since is not None


def test_progress_is_sent_at_most_twice_a_second() -> None:
    recorder = Recorder()
    now = time.monotonic()
    for step in range(100):
        recorder.output.progress(step / 100, "tracing")
        recorder.output.tick(now + step / 100)
    assert recorder.progress == [(0.0, "tracing"), (0.5, "tracing")]
    assert recorder.output.tick(now + 1.0) is None
    assert recorder.progress[-1] == (0.99, "tracing")


def test_a_parser_that_fails_is_not_asked_again_and_changes_nothing_else() -> None:
    parser = Listening()
    recorder = Recorder(parser)
    text = recorder.text(b"one\nexplode\nthree\n")
    assert text.splitlines()[:2] == [
        "(farm: the output parser failed with RuntimeError; no progress from here)",
        "one",
    ]
    assert text.endswith("one\nexplode\nthree\n")
    assert parser.lines == ["one", "explode"]
    assert recorder.output.readings.fatal == ""


@pytest.mark.parametrize("assignment", ["TOKEN=s3cret", '"TOKEN=s3cret"'])
def test_a_redacted_variable_is_not_shown(assignment: str) -> None:
    text = Recorder().text(f"openjd_redacted_env: {assignment}\nthe token is s3cret\n".encode())
    assert "s3cret" not in text
    assert "the token is ********" in text


def test_signs_of_storage_and_memory_trouble_are_remembered_with_their_line() -> None:
    recorder = Recorder()
    recorder.text(b"fine\n  write failed: No space left on device \nstd::bad_alloc\nOut of memory\n")
    assert recorder.output.readings.storage_sign == "write failed: No space left on device"
    assert recorder.output.readings.memory_sign == "std::bad_alloc"


def test_the_last_lines_are_known_at_the_end() -> None:
    recorder = Recorder()
    recorder.text(*(f"line {number}\n".encode() * 100 for number in range(5000)), b"last")
    assert recorder.output.last_lines()[-2:] == ["line 4999", "last"]


def test_an_unknown_plugin_has_no_parser() -> None:
    assert parser_for("no such plugin", (1,)) is None
