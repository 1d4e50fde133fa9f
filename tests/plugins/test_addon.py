"""The add-on's modules that know nothing of Blender."""

from __future__ import annotations

import http.server
import json
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import __version__
from farm.errors import Forbidden, Rejected, Unavailable, UserError
from farm.flow.submit import plan_job
from farm.model.plugin import SubmitOptions
from plugins.blender import addon, build_addon
from plugins.blender.addon import job, keeping, packing
from plugins.blender.addon.client import Farm, is_private
from plugins.blender.addon.job import MissingFile, SceneFacts, Wish
from plugins.blender.addon.live import Live, job_now, send
from plugins.blender.addon.wrapping import characters, lines_of, thumbnails
from plugins.blender.plugin import PLUGIN as BLENDER
from tests.plugins.test_blendfile import blend
from tests.waiting import wait_until


@pytest.fixture
def facts(tmp_path: Path) -> SceneFacts:
    path = tmp_path / "shot.blend"
    path.write_bytes(blend(scenes=((1, 9, "Main"),)))
    return SceneFacts(
        path=str(path), name="Main", first=1, last=9, hints={"engine": "CYCLES", "samples": 64.0}
    )


def view(**changes: Any) -> dict[str, Any]:
    """A JobView as the API gives it."""
    counts = dict.fromkeys(
        ("waiting", "ready", "assigned", "running", "cancelling", "held", "done", "failed", "cancelled"), 0
    )
    told = {"id": 7, "name": "shot", "state": "active", "reason": "", "output_directories": ["/out"]}
    return {
        "job": told | changes.pop("job", {}),
        "counts": counts | {"ready": 3} | changes.pop("counts", {}),
        "progress": 0.0,
        "waiting": "",
        "eta_s": None,
    } | changes


# --- the job ------------------------------------------------------------------------------------------


def test_the_add_on_makes_the_same_job_as_the_command_line(facts: SceneFacts, tmp_path: Path) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=tuple(range(1, 10)), arguments=("-S", "Main"), chunk_size=4)
    typed = BLENDER.submission(Path(facts.path), options)
    sent = job.submission(replace(facts, hints={}), Wish(chunk_size=4))
    assert asdict(sent) == asdict(
        replace(typed, parameters={**typed.parameters, "Device": "CPU"}, hints=sent.hints)
    )
    assert sent.hints["frames"] == 9.0


def test_every_wish_reaches_the_plan(facts: SceneFacts) -> None:
    wish = Wish(
        name="a job",
        frames="1-20x2",
        output="//out/a_###.exr",
        priority=80,
        pool="gpu",
        profile="COMPUTE",
        device="GPU",
        is_paused=True,
        is_film=True,
        is_preview_first=True,
        trusts_scripts=True,
        replaces_existing=True,
    )
    made = job.submission(facts, wish)
    plan = plan_job(made, uid="")
    assert [(step.name, step.frames, step.demand.gpus) for step in plan.steps] == [
        ("preview", "1,11,19", 1),
        ("render", "3-9:2,13-17:2", 1),
        ("film", None, 0),
    ]
    assert {step.demand.pool for step in plan.steps} == {"gpu"}
    assert (made.settings.priority, made.settings.is_paused, made.settings.trust_scripts) == (80, True, True)
    assert plan.steps[1].profile.source == "user"
    files = list(job.expected_files(made))
    assert len(files) == 11
    assert files[-1] == str(Path(facts.path).parent / "out" / "a.mp4")


@pytest.mark.parametrize(
    ("wish", "option", "parts"),
    [
        (Wish(split="TILES", tiles=(3, 2), frames="4"), "--tiles=3x2", 6),
        (Wish(split="SAMPLES", sample_chunks=5, frames="4", device="GPU"), "--sample-chunks=5", 5),
    ],
)
def test_a_still_is_sent_in_parts(facts: SceneFacts, wish: Wish, option: str, parts: int) -> None:
    made = job.submission(facts, wish)
    steps = {step.name: step for step in plan_job(made, uid="u").steps}
    assert steps["parts"].task_count == parts
    assert option in made.template["steps"][0]["script"]["actions"]["onRun"]["args"]
    gpus = 1 if wish.device == "GPU" else 0
    assert [steps[name].demand.gpus for name in ("parts", "assemble", "finish", "verify")] == [
        gpus,
        0,
        gpus,
        0,
    ]
    folder = Path(facts.path).parent / "render"
    assert job.first_output(made) == str(folder / "shot_0004.png")
    assert str(folder / "shot.parts" / "shot_0004.part001.exr") in job.expected_files(made)


def test_a_scene_whose_pixels_hang_together_is_not_sent_in_parts(facts: SceneFacts) -> None:
    facts = replace(facts, joins_pixels="the scene is composited")
    assert job.problems(facts, Wish()) == ()
    (found,) = job.problems(facts, Wish(split="TILES", frames="1"))
    assert "composited" in found.text
    assert not found.is_doubt


def test_files_that_only_this_computer_sees_are_named_to_a_farm_elsewhere(
    facts: SceneFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = {"/": "ext4", str(tmp_path): "xfs", str(tmp_path / "srv"): "nfs4"}
    (tmp_path / "srv").mkdir()
    for name in ("wood.png", "srv/stone.png"):
        (tmp_path / name).touch()
    paths = tuple(str(tmp_path / name) for name in ("wood.png", "srv/stone.png", "gone.png"))
    assert packing.only_here(paths, mounted) == [str(tmp_path / "wood.png")]
    assert packing.only_here(paths, {}) == [], "a system that does not say"
    monkeypatch.setattr(job, "mounts", lambda: mounted)
    facts = replace(facts, files=paths)
    job.refuse_local_files(facts, "http://127.0.0.1:7450")
    with pytest.raises(
        UserError, match=r"1 file of the scene is on a disk of this computer alone.*wood\.png"
    ):
        job.refuse_local_files(facts, "http://farm:7450")


def test_without_a_tracer_packing_says_what_is_missing(
    facts: SceneFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "TRACER", "no_such_tracer")
    with pytest.raises(UserError, match="needs blender-asset-tracer"):
        packing.pack(Path(facts.path), tmp_path / "there", print)


@pytest.mark.renderer
def test_a_scene_is_packed_with_what_it_links(blender_scenes: Path, tmp_path: Path) -> None:
    scene = tmp_path / "desk" / "shot.blend"
    (scene.parent / "textures").mkdir(parents=True)
    shutil.copy(blender_scenes / "no texture.blend", scene)
    told: list[str] = []
    packed = packing.pack(scene, tmp_path / "there", told.append)
    assert (packed.parent.parent, packed.name) == (tmp_path / "there", "shot.blend")
    assert packed.read_bytes()
    assert told[0].startswith("packing: ")
    assert "1 file missing" in told[-1]
    facts = SceneFacts(path=str(scene), last=2)
    made = job.packed(job.submission(facts, Wish()), packed)
    assert made.parameters["SceneFile"] == str(packed)
    assert made.parameters["OutputDir"] == str(scene.parent / "render"), "frames go where they were wished"

    (scene.parent / "textures" / "wood.png").write_bytes(b"wood")
    packed = packing.pack(scene, tmp_path / "elsewhere", told.append)
    assert (packed.parent / "textures" / "wood.png").read_bytes() == b"wood"
    assert "missing" not in told[-1]

    (tmp_path / "full").touch()
    with pytest.raises(UserError, match="cannot be packed into"):
        packing.pack(scene, tmp_path / "full", told.append)


def test_the_cost_of_the_scene_decides_its_profile(facts: SceneFacts) -> None:
    light = job.submission(facts, Wish())
    heavy = job.submission(
        replace(facts, hints={"samples": 1.0, "texture_mib": 8000.0, "width": 64.0, "height": 64.0}), Wish()
    )
    assert plan_job(light, uid="").steps[0].profile.tag == "compute"
    assert plan_job(heavy, uid="").steps[0].profile.tag == "bandwidth"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"path": ""}, "never saved"),
        ({"has_camera": False}, "no camera"),
        ({"first": 9, "last": 1}, "ends (frame 1) before it begins"),
        ({"output": "/x/film.psd"}, "no file format"),
        ({"missing": (MissingFile(kind="library", name="props", path="/x/props.blend"),)}, "'props'"),
        ({"scripts": ("text rig_ui.py",)}, "rig_ui.py"),
        ({"path": "/nowhere/x.blend"}, "does not exist"),
    ],
)
def test_what_is_wrong_with_a_scene_is_told_by_name(
    facts: SceneFacts, changes: dict[str, Any], part: str
) -> None:
    found = job.problems(replace(facts, **changes), Wish())
    assert any(part in problem.text for problem in found), found
    assert job.blocking(found, Wish())


def test_only_doubts_can_be_sent_anyway(facts: SceneFacts) -> None:
    doubtful = replace(facts, scripts=("text x",), missing=(MissingFile(kind="image", name="a", path="/a"),))
    assert job.blocking(job.problems(doubtful, Wish()), Wish(in_spite=True)) == ()
    assert job.blocking(job.problems(replace(facts, has_camera=False), Wish()), Wish(in_spite=True))
    assert job.problems(facts, Wish()) == ()


def test_a_file_in_the_way_is_named_before_anything_is_sent(facts: SceneFacts, tmp_path: Path) -> None:
    (tmp_path / "render").mkdir()
    (tmp_path / "render" / "shot_0004.png").touch()
    with pytest.raises(UserError, match=r"1 output file is there already: .*shot_0004\.png"):
        job.refuse_existing(job.submission(facts, Wish()))
    job.refuse_existing(job.submission(facts, Wish(replaces_existing=True)))


@pytest.mark.parametrize(
    ("versions", "refusal"),
    [
        (["3.4.1", "4.5.15"], None),
        (["3.4.1"], "the nodes have 3.4.1"),
        ([], "no node"),
        (["bpy"], "nodes have"),
    ],
)
def test_a_scene_that_no_node_can_read_is_refused(
    facts: SceneFacts, versions: list[str], refusal: str | None
) -> None:
    nodes = [{"state": "online", "capabilities": {"software": {"blender": each}}} for each in versions]
    nodes.append({"state": "offline", "capabilities": {"software": {"blender": "9.9"}}})
    newer = replace(facts, blender=(4, 2))
    if refusal is None:
        job.refuse_versions(newer, nodes)
        return
    with pytest.raises(UserError, match=refusal):
        job.refuse_versions(newer, nodes)


# --- the farm -----------------------------------------------------------------------------------------


@dataclass
class Answers:
    """A server that gives these answers by path, in turn, and the last one for ever."""

    by_path: dict[str, list[tuple[int, Any]]]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def answers() -> Iterator[Answers]:
    told = Answers({"/api/v1/nodes": [(200, {"items": []})]})

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            told.asked.append((self.command, self.path, dict(self.headers), body))
            waiting = told.by_path.get(path, [(404, {"error": {"kind": "not-found", "message": "gone"}})])
            status, value = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/api/v1/nodes")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_others: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_port}"
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_lost_answer_is_asked_for_again_with_the_same_key(facts: SceneFacts, answers: Answers) -> None:
    answers.by_path["/api/v1/jobs"] = [
        (503, {"error": {"kind": "unavailable", "message": "busy"}}),
        (201, view()),
    ]
    farm = Farm(url=answers.url, token="secret")
    sent = send(farm, job.submission(facts, Wish()), facts, Wish(in_spite=True), pause_s=0.01)
    assert (sent.id, sent.counts) == (7, "0 of 3 tasks")
    posts = [headers for command, _, headers, _ in answers.asked if command == "POST"]
    assert len(posts) == 2
    assert posts[0]["Idempotency-Key"] == posts[1]["Idempotency-Key"]
    assert posts[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "value", "kind", "part"),
    [
        (401, {}, Forbidden, "does not know your token"),
        (400, {"error": {"kind": "user-error", "message": "no \x1b[31mframes"}}, UserError, r"no \\x1b"),
        (409, {"error": {"kind": "rejected", "message": "key used"}}, Rejected, "key used"),
        (500, b"<html>", Unavailable, "HTTP 500"),
        (404, b"<html>", UserError, "no Ridgeline farm"),
        (200, b"<html>", UserError, "no Ridgeline farm"),
        (302, b"", UserError, "no Ridgeline farm"),
    ],
)
def test_an_answer_that_is_no_good_becomes_a_readable_text(
    answers: Answers, status: int, value: Any, kind: type[Exception], part: str
) -> None:
    answers.by_path["/api/v1/farm"] = [(status, value)]
    with pytest.raises(kind, match=part):
        Farm(url=answers.url, token="x").get("/farm")
    assert len(answers.asked) == 1, "no redirect is followed with a token"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[::1", "http://x:port"])
def test_a_farm_that_cannot_be_reached_is_told_by_its_address(url: str) -> None:
    with pytest.raises((Unavailable, UserError)) as raised:
        Farm(url=url, token="x").get("/farm")
    assert url in str(raised.value)


def test_a_token_that_was_copied_badly_is_refused_before_it_is_sent(answers: Answers) -> None:
    with pytest.raises(UserError, match="copy it again"):
        Farm(url=answers.url, token="a\nb").get("/nodes")
    assert answers.asked == []


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("http://127.0.0.1:7450", True),
        ("http://farm:7450", True),
        ("https://farm.local", True),
        ("https://10.1.2.3", True),
        ("https://render.example.com", False),
        ("https://8.8.8.8", False),
        ("https://", False),
    ],
)
def test_a_farm_in_the_house_needs_no_internet(url: str, private: bool) -> None:
    assert is_private(url) is private


# --- what is kept -------------------------------------------------------------------------------------


def test_a_token_goes_only_to_the_farm_that_it_was_given_for(tmp_path: Path) -> None:
    client_file = tmp_path / "client.json"
    client_file.write_text(json.dumps({"url": "http://127.0.0.1:7450", "token": "own"}))
    places: dict[str, Any] = {"directory": tmp_path / "kept", "client_file": client_file}
    assert keeping.find_farm("", **places) == Farm(url="http://127.0.0.1:7450", token="own")
    with pytest.raises(UserError, match="no token for the farm at http://farm:1"):
        keeping.find_farm("http://farm:1/", **places)
    keeping.keep_token("http://farm:1/", " secret\n", **places)
    assert keeping.find_farm("http://farm:1", **places).token == "secret"
    assert keeping.find_farm("", **places).token == "own"
    assert stat.S_IMODE((tmp_path / "kept" / "token.json").stat().st_mode) == 0o600
    assert "secret" not in repr(keeping.find_farm("http://farm:1", **places))
    keeping.keep_token("http://farm:1", "", **places)
    assert not keeping.has_token("http://farm:1", directory=tmp_path / "kept")
    with pytest.raises(UserError, match="http://"):
        keeping.find_farm("farm:1", **places)


def test_the_last_job_of_each_scene_is_remembered_and_a_damaged_file_is_no_error(tmp_path: Path) -> None:
    for number in range(keeping.MAX_JOBS + 2):
        keeping.keep_job(f"/{number}.blend", "http://farm", number, directory=tmp_path)
    assert keeping.last_job("/5.blend", "http://farm", directory=tmp_path) == 5
    assert keeping.last_job("/5.blend", "http://other", directory=tmp_path) is None
    assert keeping.last_job("/0.blend", "http://farm", directory=tmp_path) is None, "only so many"
    (tmp_path / "jobs.json").write_text("{")
    assert keeping.last_job("/5.blend", "http://farm", directory=tmp_path) is None


def test_the_farm_of_this_computer_is_looked_for_where_it_writes(tmp_path: Path) -> None:
    assert keeping.own_client_file({}, tmp_path) == tmp_path / ".local/state/ridgeline/client.json"
    assert keeping.own_client_file({"FARM_STATE_DIR": "/s"}, tmp_path) == Path("/s/client.json")


# --- what is shown ------------------------------------------------------------------------------------


def test_a_job_is_watched_through_a_lost_server_until_it_ends(answers: Answers) -> None:
    done = view(job={"state": "done"}, counts={"ready": 0, "done": 3}, progress=1.0)
    files = [{"files": [{"path": f"/out/{number}.png"}]} for number in (3, 2, 1)]
    answers.by_path["/api/v1/jobs/7"] = [(200, view(eta_s=[60.0, 120.0])), (503, {}), (200, done)]
    answers.by_path["/api/v1/jobs/7/attempts"] = [(200, {"items": files})]
    live = Live(poll_s=0.02)
    live.watch(Farm(url=answers.url, token="x"), 7)
    wait_until(lambda: live.shown.job is not None and live.shown.job.is_ended, "the job ends")
    shown = live.shown
    assert shown.text == "the farm answers again"
    assert shown.job is not None
    assert shown.job.files == ("/out/1.png", "/out/2.png", "/out/3.png")
    wait_until(lambda: not live.is_watching, "the watcher ends")
    live.forget()
    assert live.shown.job is None


def test_an_error_in_a_thread_is_shown_and_does_not_keep_the_panel_busy() -> None:
    live = Live()

    def refuse() -> str:
        raise UserError("no such thing")

    def break_() -> str:
        raise KeyError("x")

    for work, part in ((refuse, "no such thing"), (break_, "made an error: KeyError")):
        live.begin("working", work).join()
        assert part in live.shown.text
        assert (live.shown.is_error, live.shown.is_busy) == (True, False)


def test_a_job_is_shown_with_when_it_ends_or_why_it_waits() -> None:
    assert job_now(view(waiting="no node has Blender")).note == "no node has Blender"
    assert job_now(view(eta_s=[60.0, 120.0])).note == "done in 1:00 to 2:00"
    half = job_now(view(counts={"ready": 1, "done": 1, "failed": 1, "running": 1}))
    assert (half.progress, half.counts) == (0.25, "1 of 4 tasks, 1 running, 1 failed")
    hostile = job_now(view(job={"name": "\x1b]52;c;x\x07"}))
    assert "\x1b" not in hostile.name


# --- the zip ------------------------------------------------------------------------------------------


@given(text=st.text(), width=st.integers(1, 100))
def test_a_text_of_any_length_fits_the_panel_and_loses_no_word(text: str, width: int) -> None:
    lines = list(lines_of(text, width))
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("region_px", "scale", "fits", "beside"),
    [(246, 1.0, 27, 1), (318, 1.0, 38, 2), (636, 2.0, 38, 2), (900, 1.0, 127, 3), (40, 1.0, 12, 1)],
)
def test_how_much_fits_is_judged_by_the_panels_width(
    region_px: int, scale: float, fits: int, beside: int
) -> None:
    assert (characters(region_px, scale), thumbnails(region_px, scale)) == (fits, beside)


def test_a_python_without_tls_still_speaks_to_a_farm_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ssl")
    farm = Farm(url="http://127.0.0.1:9", token="rl_x")
    with pytest.raises(Unavailable, match="no farm answers"):
        farm.get("/farm")


def test_the_zip_stands_alone_and_is_the_same_each_time(tmp_path: Path) -> None:
    first = build_addon.build(tmp_path / "a").read_bytes()
    assert build_addon.build(tmp_path / "b").read_bytes() == first
    for name, text in build_addon.contents().items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert not any(
                line.startswith(("from farm", "from plugins", "import yaml")) for line in text.split("\n")
            )


def test_both_descriptions_of_the_add_on_have_the_projects_version() -> None:
    manifest = build_addon.contents()["blender_manifest.toml"]
    assert f'version = "{__version__}"' in manifest
    assert ".".join(map(str, addon.bl_info["version"])) == __version__


def test_an_import_that_blender_does_not_have_is_refused() -> None:
    with pytest.raises(build_addon.BuildError, match="numpy"):
        list(build_addon._ours("import numpy\n", "x.py"))
    assert list(build_addon._ours("from plugins import film\n", "x.py")) == ["plugins/film.py"]
