from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.chunks import Chunk, packed
from farm.flow.task_space import TaskSpace
from farm.flow.template_text import MAX_DEPTH, load_template_text
from farm.model.machines import Demand
from farm.model.work import Isolation, JobSettings, OutputSpec, Tag
from tests.flow.templates import chunks, frame, output, planned, refused, step, template

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "openjd-samples"
"""Public templates, where this checkout has them beside it."""


# --- plans ------------------------------------------------------------------------------------------------


def test_a_job_is_laid_out_in_the_templates_order() -> None:
    job = planned(
        template(step("Comp", "Render"), step("Render", space=[frame()])),
        parameters={"Frames": "1-9:2"},
        outputs=(output(),),
    )
    comp, render = job.steps
    assert (comp.name, comp.position, comp.depends_on, comp.task_count) == ("Comp", 0, ("Render",), 1)
    assert (comp.frames, comp.isolation, comp.output) == (None, Isolation.EXCLUSIVE, None)
    assert (render.position, render.depends_on, render.task_count, render.frames) == (1, (), 5, "1-9:2")
    assert (render.isolation, render.output) == (Isolation.STAGED, output())
    assert (job.name, job.uid, job.output_directories) == ("shot", "uid", ("/renders",))


def test_defaults_are_filled_in_and_values_keep_their_types() -> None:
    job = planned(template(), parameters={"Frames": "1-3"})
    assert job.parameters == {
        "Frames": ("STRING", "1-3"),
        "OutputDir": ("PATH", "/renders"),
        "Samples": ("INT", "32"),
    }


def test_paths_of_other_systems_are_left_as_they_are() -> None:
    for path in ("Z:\\show\\render", "\\\\server\\share\\x", "/mnt/Füße und Blanks", ""):
        assert planned(template(), parameters={"OutputDir": path}).parameters["OutputDir"] == ("PATH", path)


def test_host_requirements_become_a_demand() -> None:
    required = {
        "amounts": [
            {"name": "Amount.Worker.VCPU", "min": 4},
            {"name": "amount.worker.memory", "min": 8192},
            {"name": "amount.worker.gpu.memory", "min": 24000},
            {"name": "amount.worker.disk.scratch", "min": 10},
            {"name": "acme:amount.License.redshift", "min": 1, "max": 4},
        ],
        "attributes": [
            {"name": "attr.worker.os.family", "anyOf": ["LINUX", "windows"]},
            {"name": "attr.site", "allOf": ["Berlin"]},
            {"name": "attr.farm.profile", "anyOf": ["bandwidth"]},
        ],
    }
    job = planned(
        template(step(hostRequirements=required)),
        settings=JobSettings(pool="film"),
        software=("blender", "blender"),
    )
    assert job.steps[0].demand == Demand(
        pool="film",
        cpus=4,
        memory_mib=8192,
        gpus=1,
        vram_mib=24_000,
        any_of=(("attr.worker.os.family", ("linux", "windows")),),
        all_of=(("attr.site", ("berlin",)),),
        amounts=(("acme:amount.license.redshift", 1.0), ("amount.worker.disk.scratch", 10.0)),
        software=("blender",),
    )
    assert (job.steps[0].profile.tag, job.steps[0].profile.source) == (Tag.BANDWIDTH, "user")


def test_a_step_that_asks_for_nothing_takes_a_slot_and_no_more() -> None:
    assert planned(template()).steps[0].demand == Demand()
    asked = {"amounts": [{"name": "amount.worker.vcpu", "max": 8}, {"name": "amount.worker.gpu", "min": 0.5}]}
    assert planned(template(step(hostRequirements=asked))).steps[0].demand == Demand(gpus=1)


def test_the_submitters_tag_beats_the_templates() -> None:
    asked = {"attributes": [{"name": "attr.farm.profile", "anyOf": ["bandwidth"]}]}
    job = planned(template(step(hostRequirements=asked)), settings=JobSettings(tag=Tag.COMPUTE))
    assert job.steps[0].profile.tag is Tag.COMPUTE


def test_chunks_of_a_target_run_time_begin_with_the_default_size() -> None:
    source = template(step(space=[chunks("1-100", 5, target_s=600)]))
    (planned_step,) = planned(source).steps
    assert (planned_step.task_count, planned_step.chunk_target_s) == (20, 600.0)
    space = TaskSpace(source, {})
    assert planned_step.indexes == tuple(space.indexes("Render"))
    frames = [space.frames("Render", index) for index in space.indexes("Render")]
    assert frames == [tuple(range(at, at + 5)) for at in range(1, 101, 5)]
    assert space.label("Render", packed(Chunk(first=10, length=3))) == "11-13"
    for wrong in (0, packed(Chunk(first=98, length=3)), packed(Chunk(first=200, length=1))):
        with pytest.raises(IndexError):
            space.parameters("Render", wrong)


def test_chunks_that_cannot_be_cut_anew_have_the_default_size_and_a_warning() -> None:
    layer = {"name": "Layer", "type": "STRING", "range": ["a", "b"]}
    job = planned(template(step(space=[chunks("1-100", 5, target_s=600), layer])))
    assert (job.steps[0].task_count, job.steps[0].indexes, job.steps[0].chunk_target_s) == (40, None, None)
    assert len(job.warnings) == 1
    assert "target run time" in job.warnings[0]


def test_importing_submit_does_not_load_the_library() -> None:
    code = "import sys, farm.flow.submit; print({'openjd', 'yaml', 'fileseq'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# --- what is refused --------------------------------------------------------------------------------------


def cut(source: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in keys}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, ["specificationVersion"]),
        (cut(template(), "name", "steps"), ["name: Field required", "steps: Field required"]),
        (template() | {"colour": 1}, ["colour", "Extra inputs"]),
        (template() | {"extensions": ["WARP"]}, ["WARP"]),
        (template(step("A", "B"), step("B", "C"), step("C", "A")), ["in a circle: A -> B -> C -> A"]),
        (template(step("A", "A")), ["in a circle: A -> A"]),
        (template(step("A", "Z")), ["Unknown step 'Z'"]),
        (template(*[step(f"s{at}") for at in range(1001)]), ["1,001 steps; the most is 1,000"]),
        (
            template(step(space=[frame("1-1000001")])),
            ["'Render' holds 1,000,001 tasks; the most is 1,000,000"],
        ),
        (template(step(space=[chunks("1-2000000000", 10)])), ["Frames holds 2,000,000,000 frames"]),
        (
            template(step(space=[frame("1-1000000000", f"P{at}") for at in range(16)])),
            ["holds more than 1,000,000,000,000,000,000 tasks"],
        ),
        (
            template(step("A", space=[frame("1-600000")]), step("B", space=[frame("1-600000")])),
            ["up to step 'B'"],
        ),
        (template(step(space=[frame("1-99999999999999999999999")])), ["too large", "(a range is text like"]),
        (template(step(space=[frame([1, 2**63])])), ["does not fit 64 bits"]),
        (template(step(space=[frame("9223372036854775807-9223372036854775809")])), ["does not fit 64 bits"]),
        (template(step(space=[frame("1-3,9000000000")])), ["frames of Frame lie between"]),
        (template(step(space=[frame("10-1")])), ["descending", "(a range is text like 1-10"]),
        (template(step(space=[frame("1-5,3")])), ["range", "no number twice"]),
        (template() | {"description": "a\0b"}, ["NUL character"]),
        (template() | {"description": "\ud800"}, ["lone surrogate"]),
        (template() | {"description": float("nan")}, ["nan, which is no finite number"]),
        (template() | {1: 2}, ["the key 1", "quote it"]),
        (template() | {"description": {"a": object}}, ["as a type"]),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_place(
    source: dict[str, Any], words: list[str]
) -> None:
    told = refused(source)
    for word in words:
        assert word in told
    assert all(len(line) < 500 for line in told.splitlines())


def test_steps_that_meet_again_and_again_are_no_circle() -> None:
    steps = [step("top-0"), step("top-1")]
    for at in range(1, 40):
        for side in (0, 1):
            steps.append(
                step(f"{at}-{side}", *(f"{at - 1}-{other}" if at > 1 else f"top-{other}" for other in (0, 1)))
            )
    assert len(planned(template(*steps)).steps) == 80


def test_a_template_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert f"more than {MAX_DEPTH} levels" in refused(deep)
    while deep:  # taken apart by hand: the interpreter would recurse
        deep = deep["a"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Colour": "red"}, ["not defined in the template: Colour"]),
        ({"Samples": "0"}, ["Samples", "at least 1"]),
        ({"Samples": "many"}, ["many", "integer"]),
        ({"Samples": "nan"}, ["nan"]),
        ({"OutputDir": "renders/x"}, ["OutputDir", "'renders/x' is a relative path"]),
        ({"OutputDir": "../x"}, ["relative path"]),
        ({"OutputDir": "/x\x1b[2J"}, ["control character"]),
        ({"OutputDir": 5}, ["OutputDir must be text, not int"]),
        ({"Frames": "a\0"}, ["NUL"]),
        ({"Frames": "\udcff"}, ["lone surrogate"]),
        ({"Frames": "1-3x2"}, ["(a range is text like"]),
        ({"Frames": "1-" + "9" * 30}, ["a number or a range in it is too large"]),
        ({"Frames": "1" * 2_000_001}, ["2,000,001 characters"]),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_by_name(given: dict[str, Any], words: list[str]) -> None:
    told = refused(template(), parameters=given)
    for word in words:
        assert word in told


def test_a_missing_parameter_is_refused_by_name() -> None:
    told = refused(template(step(), parameters=[{"name": "Scene", "type": "PATH"}]))
    assert "Values missing for required job parameters: Scene" in told


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "Infinity"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    source = template(step(), parameters=[{"name": "Scale", "type": "FLOAT"}])
    assert "Scale" in refused(source, parameters={"Scale": value})


def test_a_whole_number_beyond_64_bits_is_refused() -> None:
    source = template(step(), parameters=[{"name": "Seed", "type": "INT"}])
    assert "does not fit 64 bits" in refused(source, parameters={"Seed": str(2**63)})
    assert planned(source, parameters={"Seed": str(2**63 - 1)}).parameters["Seed"] == ("INT", str(2**63 - 1))


@pytest.mark.parametrize(
    "name", ["", "   ", "x" * 256, "a\nb", "a\x1b[31m", "a\0", "\ud800", "a\u202eb", "a\u2028b"]
)
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    told = refused(template(), name=name)
    assert "the job's name" in told
    assert told.isprintable()


@pytest.mark.parametrize("name", ["shot_010", "Füße 漢字 🎬", "a/b\\c: \"d\" 'e'", "x" * 255])
def test_any_printable_name_will_do(name: str) -> None:
    assert planned(template(), name=name).name == name


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"priority": 101}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_retries": 101}, "retries"),
        ({"max_failed_tasks": -1}, "failed tasks"),
        ({"max_running": 0}, "running"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"timeout_s": float("nan")}, "timeout"),
        ({"timeout_s": float("inf")}, "timeout"),
        ({"depends_on": (0,)}, "job waited for"),
        ({"pool": "a\nb"}, "pool"),
        ({"user": "x" * 300}, "user"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(wrong: dict[str, Any], word: str) -> None:
    assert word in refused(template(), settings=JobSettings(**wrong))


def test_hints_must_be_finite() -> None:
    assert "samples" in refused(template(), hints={"samples": float("nan")})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (output(step="Rendr"), ["'Rendr'", "did you mean 'Render'"]),
        (output(directory_parameter="OutDir"), ["'OutDir'", "did you mean 'OutputDir'"]),
        (output(directory_parameter="Samples"), ["Samples is INT, not PATH"]),
        (output(frames_parameter="Frames"), ["'Frames'", "did you mean 'Frame'"]),
        (output(frames_parameter=None), ["names no frame parameter"]),
        (output(frames_parameter=None, file_pattern="x.png"), ["10 tasks would write the same file"]),
        (output(file_pattern="shot.png"), ["put #### where the frame number goes"]),
        (output(file_pattern="../x_####.png"), ["inside the output directory"]),
        (output(file_pattern="/x_####.png"), ["inside the output directory"]),
        (output(file_pattern="a\\..\\x_####.png"), ["inside the output directory"]),
        (output(file_pattern="C:x_####.png"), ["inside the output directory"]),
        (output(file_pattern=""), ["1 to 255 characters"]),
        (output(file_pattern="x_####\n.png"), ["control character"]),
    ],
)
def test_an_output_that_cannot_be_is_refused(spec: OutputSpec, words: list[str]) -> None:
    told = refused(template(), outputs=(spec,))
    for word in words:
        assert word in told


def test_an_output_needs_an_absolute_directory_and_is_given_once() -> None:
    assert "no absolute path" in refused(template(), parameters={"OutputDir": ""}, outputs=(output(),))
    assert "given twice" in refused(template(), outputs=(output(), output()))


def test_two_tasks_that_would_write_one_file_are_refused() -> None:
    tiles = {"name": "Tile", "type": "STRING", "range": ["left", "right"]}
    told = refused(template(step(space=[frame(), tiles])), outputs=(output(),))
    assert "tasks that differ in Tile only" in told
    assert "tasks of the same frame" in refused(template(step(space=[frame([1, 2, 1])])), outputs=(output(),))
    tied = step(space=[frame([1, 2]), tiles])
    tied["parameterSpace"]["combination"] = "(Frame, Tile)"
    assert planned(template(tied), outputs=(output(),)).steps[0].task_count == 2


# --- nothing crashes --------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["INT", "1-10", "{{Param.Frames}}", "{{Param.X", "CHUNK[INT]", "Render", "(Frame, Frame)", "*"]
    )
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, child in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        found += places(child, (*path, key))
    return found


RICH = template(
    step(
        "Render",
        space=[frame(), chunks("1-9", 2)],
        hostRequirements={"amounts": [{"name": "amount.worker.gpu", "min": 1}]},
    ),
    step("Comp", "Render"),
) | {"extensions": ["TASK_CHUNKING", "EXPR", "FEATURE_BUNDLE_1"]}
PLACES = places(RICH)


@given(st.lists(st.tuples(st.sampled_from(PLACES), TREES), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_template_is_planned_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    source = copy.deepcopy(RICH)
    for path, value in changes:
        try:
            parent: Any = source
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
        except (LookupError, TypeError):  # an earlier change took this place away
            continue
    try:
        job = planned(source, outputs=(output(),))
    except UserError:
        return
    assert all(each.task_count >= 1 for each in job.steps)


# --- public templates -------------------------------------------------------------------------------------


def sample_templates() -> list[Path]:
    found = SAMPLES.rglob("*.yaml")
    return sorted(
        path
        for path in found
        if "jobtemplate-2023-09" in path.read_text()[:4000] and "conformance" not in str(path)
    )


def sample_values(source: dict[str, Any]) -> dict[str, str]:
    """What a client would send: values for what has no default, and absolute paths."""
    values = {}
    for definition in source.get("parameterDefinitions", []):
        name, kind = definition["name"], definition["type"].upper()
        if kind == "PATH":
            values[name] = f"/show/{definition.get('default', name)}"
        elif "default" not in definition:
            plain = definition.get("allowedValues", ["1-10" if name == "Frames" else "text"])[0]
            values[name] = str(definition.get("minValue", 1)) if kind in ("INT", "FLOAT") else plain
    return values


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not beside this checkout")
def test_public_templates_are_read_planned_and_their_tasks_made() -> None:
    paths = sample_templates()
    assert len(paths) > 30
    for path in paths:
        source = load_template_text(path.read_text())
        job = planned(source, parameters=sample_values(source))
        space = TaskSpace(source, job.parameters)
        for each in job.steps:
            assert each.task_count == space.count(each.name) >= 1, path
            indexes = space.indexes(each.name)
            for at in {indexes[0], indexes[-1]}:
                space.parameters(each.name, at)
                assert space.label(each.name, at).isprintable(), path
        assert TaskSpace(
            source, planned(source, parameters={n: v for n, (_, v) in job.parameters.items()}).parameters
        )


@pytest.mark.parametrize(
    ("name", "code"),
    [("\u202eevil", "U+202E"), ("a\nb", "U+000A"), ("\x1b[31mred", "U+001B"), ("x\x9b", "U+009B")],
)
def test_a_name_with_what_cannot_be_seen_is_refused_and_that_is_named(name: str, code: str) -> None:
    """Of a character that is dropped when the name is shown, the name alone says nothing."""
    assert code in refused(template(), name=name)
