"""What the API does: submit, read, steer, explain; who may; what is written down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome, TaskState
from farm.store import advancing, jobs, moves, nodes, settling
from farm.store.engine import open_engine, reading, writing
from farm.store.tables import StepRow
from farm.wire.messages import Finished, Heartbeat, LogChunk
from tests.edges.api import V1, Api, open_api, submission, template
from tests.leasing import lease


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def api(engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    with open_api(engine, tmp_path) as opened:
        yield opened


def _enrol(
    engine: sa.Engine, name: str = "blade", *, slots: int = 2, pools: tuple[str, ...] = ("default",)
) -> None:
    machine = Capabilities(
        cpus=8,
        memory_mib=16_000,
        pools=pools,
        devices=(Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=slots),),
    )
    with writing(engine) as db:
        beat = Heartbeat(node_id=NodeId(name), session="s", boot_id="b", sequence=1, capabilities=machine)
        nodes.heard(db, beat, rival_s=30)


def _start(engine: sa.Engine, job_id: int, count: int, *, node: str = "blade") -> list[AttemptId]:
    """Let the node run `count` tasks of the job's first step; returns the attempts."""
    with writing(engine) as db:
        moves.lock_jobs(db, [JobId(job_id)])
        step = jobs.read_job(db, JobId(job_id)).steps[0]
        leases = lease(db, step.id, NodeId(node), count, name=lambda task: f"{job_id}-{task.index}")
        attempts = [each.attempt_id for each in leases]
        settling.started(db, NodeId(node), attempts)
        return attempts


def _end(
    engine: sa.Engine,
    attempts: list[AttemptId],
    outcome: Outcome = Outcome.SUCCEEDED,
    *,
    runtime_s: float = 10,
) -> None:
    with writing(engine) as db:
        settling.lock_jobs_of(db, attempts)
        reports = [
            Finished(attempt_id=AttemptId(a), outcome=outcome, runtime_s=runtime_s, reason="broken")
            for a in attempts
        ]
        settling.finished(db, {NodeId("blade"): reports})


# --- submitting ---------------------------------------------------------------------------------------


def test_a_submission_becomes_a_job_and_wakes_the_scheduler(api: Api) -> None:
    answer = api.anna.post(f"{V1}/jobs", json=submission("1-10:2"))
    assert answer.status_code == 201
    view = answer.json()
    assert answer.headers["location"] == f"{V1}/jobs/{view['job']['id']}"
    assert (view["job"]["name"], view["job"]["state"], view["counts"]["ready"]) == ("shot", "active", 5)
    assert view["job"]["steps"][0]["frames"] == "1-9:2"
    assert view["job"]["settings"]["user"] == "anna"
    assert (view["progress"], view["eta_s"], view["spread"]) == (0.0, None, None)
    assert view["waiting"] == "no node has enrolled yet"
    assert api.nudges == 1
    assert api.bert.get(f"{V1}/jobs/{view['job']['id']}").json() == view


def test_a_dry_run_tells_the_plan_and_stores_nothing(api: Api) -> None:
    answer = api.anna.post(f"{V1}/jobs", params={"dry_run": True}, json=submission())
    assert answer.status_code == 200
    plan = answer.json()
    assert [(s["name"], s["tasks"], s["frames"], s["isolation"]) for s in plan["steps"]] == [
        ("Render", 10, "1-10", "exclusive")
    ]
    assert api.anna.get(f"{V1}/jobs").json() == {"items": [], "next": None}
    assert api.nudges == 0
    wrong = api.anna.post(
        f"{V1}/jobs", params={"dry_run": True}, json=submission(settings={"depends_on": [99]})
    )
    assert wrong.status_code == 404


def test_a_wrong_submission_says_what_is_wrong(api: Api) -> None:
    answer = api.anna.post(f"{V1}/jobs", json=submission("10-1"))
    assert answer.status_code == 400
    assert "a range is text like 1-10" in answer.json()["error"]["message"]
    answer = api.anna.post(f"{V1}/jobs", json=submission(settings={"prio": 7}))
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("settings.prio: ")
    answer = api.anna.post(f"{V1}/jobs", json=submission(settings={"priority": 101}))
    assert "0 to 100" in answer.json()["error"]["message"]
    assert api.anna.get(f"{V1}/jobs").json()["items"] == []


def test_more_tasks_than_the_farm_takes_are_refused(engine: sa.Engine, tmp_path: Path) -> None:
    with open_api(engine, tmp_path, max_tasks_per_job=9) as api:
        answer = api.anna.post(f"{V1}/jobs", json=submission("1-10"))
        assert answer.status_code == 400
        assert "10 tasks; this farm takes at most 9" in answer.json()["error"]["message"]


def test_one_idempotency_key_makes_one_job(api: Api) -> None:
    first = api.anna.post(f"{V1}/jobs", json=submission(), headers={"Idempotency-Key": "k"})
    again = api.anna.post(f"{V1}/jobs", json=submission(), headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["job"]["id"] == first.json()["job"]["id"]
    other = api.anna.post(f"{V1}/jobs", json=submission("1-11"), headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["kind"]) == (409, "rejected")
    assert len(api.anna.get(f"{V1}/jobs").json()["items"]) == 1


def test_one_idempotency_key_of_two_people_makes_two_jobs(api: Api) -> None:
    answers = [
        client.post(f"{V1}/jobs", json=submission(), headers={"Idempotency-Key": "k"})
        for client in (api.anna, api.bert)
    ]
    assert [answer.status_code for answer in answers] == [201, 201]


def test_one_idempotency_key_sent_many_times_at_once_makes_one_job(
    engine: sa.Engine, tmp_path: Path, database_url: str
) -> None:
    opened = open_engine(database_url)
    with open_api(opened, tmp_path) as api:
        statuses: list[int] = []
        barrier = threading.Barrier(6)

        def submit() -> None:
            barrier.wait()
            answer = api.anna.post(f"{V1}/jobs", json=submission(), headers={"Idempotency-Key": "k"})
            statuses.append(answer.status_code)

        threads = [threading.Thread(target=submit) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(statuses) == [200, 200, 200, 200, 200, 201]
        assert len(api.anna.get(f"{V1}/jobs").json()["items"]) == 1
    opened.dispose()


# --- reading ------------------------------------------------------------------------------------------


def test_lists_come_in_pages(api: Api) -> None:
    ids = [api.submit(api.anna) for _ in range(5)]
    seen: list[int] = []
    cursor: int | None = None
    while True:
        page = api.anna.get(
            f"{V1}/jobs", params={"limit": 2, **({"before": cursor} if cursor else {})}
        ).json()
        seen += [item["job"]["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    first = api.anna.get(f"{V1}/jobs/{ids[0]}/tasks", params={"limit": 7}).json()
    rest = api.anna.get(f"{V1}/jobs/{ids[0]}/tasks", params={"limit": 7, "after": first["next"]}).json()
    assert [t["label"] for t in first["items"] + rest["items"]] == [str(n) for n in range(1, 11)]
    assert rest["next"] is None


def test_jobs_are_found_by_state_user_and_name(api: Api) -> None:
    one = api.submit(api.anna, name="shot_010")
    two = api.submit(api.bert, name="shot_020", settings={"is_paused": True})

    def found(**query: Any) -> list[int]:
        return [item["job"]["id"] for item in api.anna.get(f"{V1}/jobs", params=query).json()["items"]]

    assert found(state="active") == [one]
    assert found(state=["active", "paused"]) == [two, one]
    assert found(user="bert") == [two]
    assert found(name="_01") == [one]
    assert found(name="%") == []


def test_tasks_are_found_by_frames_in_every_step(api: Api) -> None:
    job_id = api.submit(api.anna, template=template("1-5", steps=("Simulate", "Render")))

    def found(**query: Any) -> list[tuple[str, str]]:
        answer = api.anna.get(f"{V1}/jobs/{job_id}/tasks", params=query)
        assert answer.status_code == 200, answer.text
        return [(task["step"], task["label"]) for task in answer.json()["items"]]

    assert found(frames="4-5") == [("Simulate", "4"), ("Simulate", "5"), ("Render", "4"), ("Render", "5")]
    assert found(frames="4-5", step="Render") == [("Render", "4"), ("Render", "5")]
    assert found(frames="4", state="waiting") == [("Render", "4")]
    ids = [task["id"] for task in api.anna.get(f"{V1}/jobs/{job_id}/tasks").json()["items"]]
    assert found(task=[ids[1], ids[8]]) == [("Simulate", "2"), ("Render", "4")]
    assert found(task=ids[:3], frames="2-4") == [("Simulate", "2"), ("Simulate", "3")]
    assert api.anna.get(f"{V1}/jobs/{job_id}/tasks", params={"task": ids[-1] + 1}).status_code == 404
    missing = api.anna.get(f"{V1}/jobs/{job_id}/tasks", params={"frames": "4-7"})
    assert missing.status_code == 400
    assert missing.json()["error"]["message"] == "no task renders 6-7 (2 frames); there are 1-5 (5 frames)"
    unknown = api.anna.get(f"{V1}/jobs/{job_id}/tasks", params={"step": "render"})
    assert "its steps are: Simulate, Render" in unknown.json()["error"]["message"]


def test_what_does_not_exist_is_not_found(api: Api) -> None:
    paths = "/jobs/9 /jobs/9/tasks /jobs/9/why /jobs/9/attempts /tasks/9 /tasks/9/attempts /tasks/9/why"
    for path in [*paths.split(), "/attempts/none", "/attempts/none/log", "/nodes/none"]:
        answer = api.anna.get(V1 + path)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "not-found"), path
    for path in ("/jobs/9/cancel", "/jobs/9/retry"):
        assert api.anna.post(V1 + path, json={"frames": "1"}).status_code == 404
    assert api.anna.patch(f"{V1}/jobs/9", json={"priority": 1}).status_code == 404


def test_a_running_job_tells_progress_spread_and_when_it_will_end(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna)
    _end(engine, _start(engine, job_id, 2), runtime_s=20)
    _start(engine, job_id, 2)
    view = api.anna.get(f"{V1}/jobs/{job_id}").json()
    assert view["counts"]["done"] == view["counts"]["running"] == 2
    assert view["progress"] == 0.2
    assert view["spread"]["p50_s"] == 20
    assert view["eta_s"] == [80.0, 80.0]  # 8 tasks of 20 s on 2 slots, no spread
    assert view["waiting"] == ""
    farm = api.anna.get(f"{V1}/farm").json()
    assert (farm["slots"], farm["slots_used"], farm["counts"]["running"], farm["user"]) == (2, 2, 2, "anna")
    node = api.anna.get(f"{V1}/nodes").json()["items"][0]
    assert node["running"] == [f"{job_id} shot 3", f"{job_id} shot 4"]


def test_an_attempt_and_its_output_are_read_by_id(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna)
    attempt_id = _start(engine, job_id, 1)[0]
    from farm.store import logs

    with writing(engine) as db:
        chunks = [
            LogChunk(attempt_id=AttemptId(attempt_id), sequence=n, text=f"line {n}\n") for n in range(3)
        ]
        logs.append(db, NodeId("blade"), chunks)
    log = api.anna.get(f"{V1}/attempts/{attempt_id}/log", params={"after": 0}).json()
    assert log == {
        "chunks": [{"sequence": 1, "text": "line 1\n"}, {"sequence": 2, "text": "line 2\n"}],
        "is_ended": False,
    }
    _end(engine, [attempt_id])
    assert api.anna.get(f"{V1}/attempts/{attempt_id}").json()["state"] == "succeeded"
    # Output may still be on its way for a moment.
    assert api.anna.get(f"{V1}/attempts/{attempt_id}/log").json()["is_ended"] is False
    with writing(engine) as db:
        db.execute(sa.text("UPDATE attempt SET finished_at = finished_at - 5"))
    assert api.anna.get(f"{V1}/attempts/{attempt_id}/log").json()["is_ended"] is True
    assert api.anna.get(f"{V1}/attempts/{attempt_id}/log", params={"limit": 3}).json()["is_ended"] is False
    assert [a["id"] for a in api.anna.get(f"{V1}/jobs/{job_id}/attempts").json()["items"]] == [attempt_id]


def test_a_text_is_found_in_the_newest_output_of_every_task(
    api: Api, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.control.desk import tasks
    from farm.store import logs

    _enrol(engine, slots=10)
    job_id = api.submit(api.anna)
    attempts = _start(engine, job_id, 3)
    with writing(engine) as db:
        for number, attempt_id in enumerate(attempts):
            texts = (f"frame {number}\nWarning: tex", "ture wood is MISSING\n", "Saved\n")
            chunks = [
                LogChunk(attempt_id=AttemptId(attempt_id), sequence=at, text=text)
                for at, text in enumerate(texts)
            ]
            logs.append(db, NodeId("blade"), chunks)
    path = f"{V1}/jobs/{job_id}/grep"

    found = api.bert.get(path, params={"text": "texture wood is missing"}).json()

    assert [(line["label"], line["node_id"], line["number"], line["text"]) for line in found["items"]] == [
        (str(frame), "blade", 2, "Warning: texture wood is MISSING") for frame in (1, 2, 3)
    ]
    assert found["next"] is None
    two = api.bert.get(path, params={"text": "saved", "frames": "2"}).json()["items"]
    assert [line["label"] for line in two] == ["2"]
    assert api.bert.get(path, params={"text": "frame 9"}).json() == {"items": [], "next": None}
    assert api.bert.get(path, params={"text": "saved", "state": "failed"}).json()["items"] == []
    assert api.bert.get(path, params={"text": " "}).status_code == 400

    monkeypatch.setattr(tasks, "_GREPPED_TASKS", 1)
    labels: list[str] = []
    after: int | None = 0
    while after is not None:
        page = api.bert.get(path, params={"text": "frame 2", "after": after}).json()
        labels += [line["label"] for line in page["items"]]
        after = page["next"]
    assert labels == ["3"]


# --- steering -----------------------------------------------------------------------------------------


def test_a_job_is_changed_paused_and_resumed(api: Api) -> None:
    job_id = api.submit(api.anna)
    changed = api.anna.patch(
        f"{V1}/jobs/{job_id}", json={"priority": 80, "max_running": 3, "pool": "night", "is_paused": True}
    ).json()["job"]
    assert changed["state"] == "paused"
    assert (changed["settings"]["priority"], changed["settings"]["max_running"]) == (80, 3)
    assert changed["settings"]["pool"] == changed["steps"][0]["demand"]["pool"] == "night"
    back = api.anna.patch(f"{V1}/jobs/{job_id}", json={"max_running": 0, "pool": "", "is_paused": False})
    settings = back.json()["job"]["settings"]
    assert (settings["priority"], settings["max_running"], settings["pool"]) == (80, None, None)
    assert back.json()["job"]["state"] == "active"


@pytest.mark.parametrize(
    "body",
    [{}, {"priority": 101}, {"priority": -1}, {"max_running": -1}, {"pool": "a\u001bb"}, {"state": "x"}],
)
def test_a_wrong_change_changes_nothing(api: Api, body: dict[str, Any]) -> None:
    job_id = api.submit(api.anna)
    before = api.anna.get(f"{V1}/jobs/{job_id}").json()
    assert api.anna.patch(f"{V1}/jobs/{job_id}", json=body).status_code in (400, 422)
    assert api.anna.get(f"{V1}/jobs/{job_id}").json() == before


def test_frames_are_cancelled_and_tried_again(api: Api) -> None:
    job_id = api.submit(api.anna)
    answer = api.anna.post(f"{V1}/jobs/{job_id}/cancel", json={"frames": "9-10"}).json()
    assert (answer["changed"], answer["job"]["counts"]["cancelled"]) == (2, 2)
    answer = api.anna.post(f"{V1}/jobs/{job_id}/retry", json={"frames": "10"}).json()
    assert (answer["changed"], answer["job"]["counts"]["ready"]) == (1, 9)
    answer = api.anna.post(f"{V1}/jobs/{job_id}/cancel").json()
    assert (answer["changed"], answer["job"]["job"]["state"]) == (9, "cancelled")
    assert api.anna.post(f"{V1}/jobs/{job_id}/cancel", json={}).json()["changed"] == 0


def test_tasks_are_chosen_by_id_and_only_of_the_job(api: Api) -> None:
    one, two = api.submit(api.anna), api.submit(api.anna)
    foreign = api.anna.get(f"{V1}/jobs/{two}/tasks").json()["items"][0]["id"]
    answer = api.anna.post(f"{V1}/jobs/{one}/cancel", json={"task_ids": [foreign]})
    assert answer.status_code == 404
    own = api.anna.get(f"{V1}/jobs/{one}/tasks").json()["items"][0]["id"]
    assert api.anna.post(f"{V1}/jobs/{one}/cancel", json={"task_ids": [own]}).json()["changed"] == 1
    assert api.anna.get(f"{V1}/jobs/{two}").json()["counts"]["cancelled"] == 0


def test_a_done_frame_is_rendered_again_only_when_asked_for(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna)
    _end(engine, _start(engine, job_id, 1))
    assert api.anna.post(f"{V1}/jobs/{job_id}/retry", json={}).json()["changed"] == 0
    answer = api.anna.post(f"{V1}/jobs/{job_id}/retry", json={"states": ["done"], "frames": "1"})
    assert answer.json()["changed"] == 1
    assert api.anna.get(f"{V1}/jobs/{job_id}/tasks").json()["items"][0]["generation"] == 2
    running = api.anna.post(f"{V1}/jobs/{job_id}/retry", json={"states": ["running"]})
    assert running.status_code == 400


def test_an_ended_job_is_removed_by_its_owner(api: Api) -> None:
    job_id = api.submit(api.anna)
    assert api.anna.delete(f"{V1}/jobs/{job_id}").status_code == 409, "it has not ended"
    api.anna.post(f"{V1}/jobs/{job_id}/cancel", json={})
    api.submit(api.anna)
    assert api.bert.delete(f"{V1}/jobs/{job_id}").status_code == 403
    assert api.anna.delete(f"{V1}/jobs/{job_id}").status_code == 204
    assert api.anna.get(f"{V1}/jobs/{job_id}").status_code == 404
    assert api.anna.delete(f"{V1}/jobs/{job_id}").status_code == 404
    (audited,) = [e for e in api.admin.get(f"{V1}/audit").json()["items"] if e["status"] == 204]
    assert (audited["target"], audited["before"]["state"]) == (f"job {job_id}", "cancelled")


def test_a_user_steers_only_their_own_jobs_and_an_admin_all(api: Api, engine: sa.Engine) -> None:
    job_id = api.submit(api.anna)
    steers: tuple[tuple[str, str, Any], ...] = (
        ("PATCH", f"/jobs/{job_id}", {"priority": 1}),
        ("POST", f"/jobs/{job_id}/cancel", {}),
        ("POST", f"/jobs/{job_id}/retry", {}),
    )
    for method, path, body in steers:
        refused = api.bert.request(method, V1 + path, json=body)
        assert (refused.status_code, refused.json()["error"]["kind"]) == (403, "forbidden")
        assert "belongs to anna" in refused.json()["error"]["message"]
        assert api.admin.request(method, V1 + path, json=body).status_code == 200
    _enrol(engine)
    for_admins: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/nodes/blade/drain", None),
        ("POST", "/nodes/blade/undrain", None),
        ("GET", "/tokens", None),
        ("POST", "/tokens", {"name": "x", "user": "x"}),
        ("DELETE", "/tokens/admin-laptop", None),
        ("GET", "/audit", None),
    )
    for method, path, body in for_admins:
        assert api.anna.request(method, V1 + path, json=body).status_code == 403, path


def test_a_users_job_is_their_own_whatever_it_says(api: Api) -> None:
    for client, user in ((api.anna, "anna"), (api.admin, "bert")):
        answer = client.post(f"{V1}/jobs", json=submission(settings={"user": "bert"}))
        assert answer.json()["job"]["settings"]["user"] == user
    assert api.admin.post(f"{V1}/jobs", json=submission()).json()["job"]["settings"]["user"] == "admin"


def test_a_node_is_drained_and_released(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    drained = api.admin.post(f"{V1}/nodes/blade/drain").json()
    assert (drained["state"], drained["reason"]) == ("draining", "drained by admin")
    job_id = api.submit(api.anna)
    assert api.anna.get(f"{V1}/jobs/{job_id}").json()["waiting"] == "blade: drained by admin"
    assert api.admin.post(f"{V1}/nodes/blade/undrain").json()["state"] == "online"


def test_a_nudge_that_fails_fails_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no broker")

    monkeypatch.setattr(api.app.state.desk, "_nudge", broken)
    assert api.anna.post(f"{V1}/jobs", json=submission()).status_code == 201


# --- why ----------------------------------------------------------------------------------------------


def _why(api: Api, path: str) -> list[str]:
    return [
        f"{line['step']}: {line['text']}" if line["step"] else line["text"]
        for line in api.anna.get(f"{V1}{path}/why").json()["lines"]
    ]


def test_why_names_the_nodes_that_do_not_fit(api: Api, engine: sa.Engine) -> None:
    _enrol(engine, "blade-1")
    _enrol(engine, "blade-2")
    job_id = api.submit(api.anna, settings={"pool": "night"})
    line = api.anna.get(f"{V1}/jobs/{job_id}/why").json()["lines"][0]
    assert (line["step"], line["count"], line["node_ids"]) == ("Render", 2, ["blade-1", "blade-2"])
    assert "night" in line["text"]
    assert line["is_momentary"] is False


def test_why_tells_pauses_other_jobs_other_steps_and_ends(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    first = api.submit(api.anna, name="first")
    second = api.submit(api.anna, settings={"depends_on": [first]})
    assert _why(api, f"/jobs/{second}") == [f"waits for job {first} (first), which is active"]
    view = api.anna.get(f"{V1}/jobs/{second}").json()
    assert (view["job"]["state"], view["waiting"]) == (
        "waiting",
        f"waits for job {first} (first), which is active",
    )
    api.anna.post(f"{V1}/jobs/{first}/cancel")
    assert "which is cancelled: retry it, or cancel this one" in _why(api, f"/jobs/{second}")[0]
    assert _why(api, f"/jobs/{first}") == ["the job is cancelled"]
    third = api.submit(api.anna, settings={"is_paused": True})
    assert _why(api, f"/jobs/{third}") == ["paused"]
    fourth = api.submit(api.anna, template=template("1-2", steps=("Simulate", "Render")))
    assert _why(api, f"/jobs/{fourth}")[-1] == "Render: waits for step Simulate (0 of 2 done)"
    _start(engine, fourth, 2)
    assert _why(api, f"/jobs/{fourth}") == ["Render: waits for step Simulate (0 of 2 done)"]


def test_why_of_a_task_tells_where_it_runs_or_when_it_is_tried_again(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna)
    attempts = _start(engine, job_id, 2)
    tasks = [task["id"] for task in api.anna.get(f"{V1}/jobs/{job_id}/tasks").json()["items"]]
    assert _why(api, f"/tasks/{tasks[0]}") == ["Render: running on blade"]
    _end(engine, attempts[:1], Outcome.LICENCE)
    assert _why(api, f"/tasks/{tasks[0]}")[0].startswith("Render: tries again in ")
    _end(engine, attempts[1:], Outcome.JOB_ERROR)
    assert "its renderers found no licence" in _why(api, f"/tasks/{tasks[1]}")[0]
    with writing(engine) as db:
        db.execute(sa.update(StepRow).values(licence_until=0.0))
    assert "starts with the next match" in _why(api, f"/tasks/{tasks[1]}")[0]  # there is no other node
    _enrol(engine, "blade-2")
    assert "failed on blade: other nodes may try first, for a while" in _why(api, f"/tasks/{tasks[1]}")[0]
    api.anna.post(f"{V1}/jobs/{job_id}/cancel", json={"task_ids": tasks[2:3]})
    assert _why(api, f"/tasks/{tasks[2]}") == ["Render: the task is cancelled: cancelled by anna"]


def test_why_says_when_all_ready_tasks_wait_for_a_delay(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna, template=template("1"))
    _end(engine, _start(engine, job_id, 1), Outcome.LICENCE)
    assert api.anna.get(f"{V1}/jobs/{job_id}").json()["waiting"].startswith("tries again in ")


# --- tokens and the audit -----------------------------------------------------------------------------


def test_a_token_is_made_used_listed_and_revoked(api: Api) -> None:
    made = api.admin.post(f"{V1}/tokens", json={"name": "cleo-laptop", "user": "cleo"})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    token = made.json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert api.nobody.get(f"{V1}/farm", headers=headers).json()["user"] == "cleo"
    listed = api.admin.get(f"{V1}/tokens")
    assert {"name": "cleo-laptop", "user": "cleo", "role": "user"} in listed.json()["items"]
    assert token not in listed.text
    assert api.admin.post(f"{V1}/tokens", json={"name": "cleo-laptop", "user": "x"}).status_code == 400
    assert api.admin.post(f"{V1}/tokens", json={"name": "y", "user": "x", "role": "root"}).status_code == 400
    assert api.admin.delete(f"{V1}/tokens/cleo-laptop").status_code == 204
    assert api.nobody.get(f"{V1}/farm", headers=headers).status_code == 401
    assert api.admin.delete(f"{V1}/tokens/cleo-laptop").status_code == 404


def test_the_last_admin_token_cannot_be_revoked(api: Api) -> None:
    assert api.admin.delete(f"{V1}/tokens/admin-laptop").status_code == 409
    assert api.admin.get(f"{V1}/farm").status_code == 200


def test_every_change_is_written_down_and_refused_ones_too(api: Api, engine: sa.Engine) -> None:
    _enrol(engine)
    job_id = api.submit(api.anna)
    api.anna.patch(f"{V1}/jobs/{job_id}", json={"priority": 80})
    api.bert.patch(f"{V1}/jobs/{job_id}", json={"priority": 1})
    api.anna.post(f"{V1}/jobs/{job_id}/cancel", json={"frames": "1-2"})
    api.anna.post(f"{V1}/jobs", json={"name": "x"})
    api.admin.post(f"{V1}/nodes/blade/drain")
    api.admin.post(f"{V1}/tokens", json={"name": "t", "user": "t"})
    entries = api.admin.get(f"{V1}/audit").json()["items"]
    assert [(e["actor"], e["method"], e["target"], e["status"]) for e in entries] == [
        ("anna", "POST", f"job {job_id}", 201),
        ("anna", "PATCH", f"job {job_id}", 200),
        ("bert", "PATCH", "", 403),
        ("anna", "POST", f"job {job_id}", 200),
        ("anna", "POST", "", 422),
        ("admin", "POST", "node blade", 200),
        ("admin", "POST", "token t", 201),
    ]
    assert (entries[1]["before"], entries[1]["after"]) == ({"priority": 50}, {"priority": 80})
    assert entries[2]["path"] == f"{V1}/jobs/{job_id}"
    assert entries[0]["token"] == "anna-laptop"
    assert entries[0]["ip"] == "127.0.0.1"
    assert "rl_" not in str(entries)


# --- more frames, again -----------------------------------------------------------------------------------


def test_frames_are_appended_while_old_ones_run(api: Api, engine: sa.Engine) -> None:
    _enrol(engine, slots=10)
    job_id = api.submit(api.anna, template=template("1-3", steps=("Render", "Comp")))
    _end(engine, _start(engine, job_id, 3))

    answer = api.anna.post(f"{V1}/jobs/{job_id}/frames", json={"frames": "4-5"})

    assert answer.status_code == 200, answer.text
    assert answer.json()["changed"] == 4
    steps = {step["name"]: step for step in answer.json()["job"]["job"]["steps"]}
    assert steps["Render 2"]["counts"]["ready"] == 2
    assert steps["Comp 2"]["depends_on"] == ["Render 2"]
    assert steps["Comp"]["counts"]["ready"] == 3  # frames that are done open what waits for them
    labels = [
        (task["step"], task["label"], task["state"])
        for task in api.bert.get(f"{V1}/jobs/{job_id}/tasks", params={"frames": "4"}).json()["items"]
    ]
    assert labels == [("Render 2", "4", "ready"), ("Comp 2", "4", "waiting")]
    assert api.bert.post(f"{V1}/jobs/{job_id}/frames", json={"frames": "9"}).status_code == 403
    doubled = api.anna.post(f"{V1}/jobs/{job_id}/frames", json={"frames": "3-9"})
    assert doubled.status_code == 400
    assert "has 3-5 (3 frames) already" in doubled.json()["error"]["message"]


def test_a_done_job_goes_on_and_what_comes_after_is_made_again(api: Api, engine: sa.Engine) -> None:
    _enrol(engine, slots=10)
    steps = template("1-2", steps=("Render",))
    steps["steps"].append(
        {
            "name": "Film",
            "dependencies": [{"dependsOn": "Render"}],
            "script": {"actions": {"onRun": {"command": "true"}}},
        }
    )
    job_id = api.submit(api.anna, template=steps)
    _end(engine, _start(engine, job_id, 2))
    with writing(engine) as db:
        film = jobs.read_job(db, JobId(job_id)).steps[1]
        moves.lock_jobs(db, [job_id])
        moves.move_all(db, film.id, TaskState.READY, TaskState.DONE)
        advancing.advance_jobs(db, [JobId(job_id)])
    assert api.anna.get(f"{V1}/jobs/{job_id}").json()["job"]["state"] == "done"

    view = api.anna.post(f"{V1}/jobs/{job_id}/frames", json={"frames": "3"}).json()["job"]

    assert (view["job"]["state"], view["job"]["finished_at"]) == ("active", None)
    film_task = api.anna.get(f"{V1}/jobs/{job_id}/tasks", params={"step": "Film"}).json()["items"][0]
    assert (film_task["state"], film_task["generation"]) == ("waiting", 2)


def test_a_cancelled_job_gets_no_frames(api: Api) -> None:
    job_id = api.submit(api.anna)
    api.anna.post(f"{V1}/jobs/{job_id}/cancel")
    answer = api.anna.post(f"{V1}/jobs/{job_id}/frames", json={"frames": "11"})
    assert answer.status_code == 409
    assert "farm resubmit" in answer.json()["error"]["message"]


def test_project_and_stall_policy_change_and_stay(api: Api) -> None:
    job_id = api.submit(api.anna)
    path = f"{V1}/jobs/{job_id}"
    body = {"project": "dune", "on_stall": "kill"}
    assert api.anna.patch(path, json=body).status_code == 200
    settings = api.anna.get(path).json()["job"]["settings"]
    assert (settings["project"], settings["on_stall"]) == ("dune", "kill")
    with reading(api.engine) as db:
        assert db.scalar(sa.text("SELECT project FROM job")) == "dune", "what shares are counted by"
    assert api.anna.patch(path, json={"project": ""}).json()["job"]["settings"]["project"] == ""
    for wrong in ({"project": "\x1b"}, {"on_stall": "explode"}):
        assert api.anna.patch(path, json=wrong).status_code in (400, 422)


def test_settings_change_and_what_is_wrong_is_told(api: Api) -> None:
    job_id = api.submit(api.anna)
    change = {"name": "b", "timeout_s": 60, "order": "every 3rd first", "tag": "compute", "max_retries": 7}
    job = api.anna.patch(f"{V1}/jobs/{job_id}", json=change).json()["job"]
    assert (job["name"], job["settings"]["timeout_s"], job["settings"]["order"]) == ("b", 60, "every-3")
    assert (job["settings"]["tag"], job["settings"]["max_retries"]) == ("compute", 7)
    assert (
        api.anna.patch(f"{V1}/jobs/{job_id}", json={"timeout_s": 0}).json()["job"]["settings"]["timeout_s"]
        is None
    )
    for wrong in ({"order": "revers"}, {"max_retries": -1}, {"timeout_s": -1}, {"name": " "}, {}):
        assert api.anna.patch(f"{V1}/jobs/{job_id}", json=wrong).status_code == 400


def test_a_submission_is_read_back_as_the_job_is_now(api: Api) -> None:
    job_id = api.submit(api.anna, settings={"priority": 20})
    api.anna.patch(f"{V1}/jobs/{job_id}", json={"priority": 80, "name": "better"})
    told = api.anna.get(f"{V1}/jobs/{job_id}/submission").json()
    assert (told["name"], told["settings"]["priority"], told["template"]) == ("better", 80, template())
    assert api.bert.get(f"{V1}/jobs/{job_id}/submission").status_code == 403
    assert api.anna.post(f"{V1}/jobs", json=told).status_code == 201


# --- frame by frame ---------------------------------------------------------------------------------------


def _ready(api: Api, job_id: int) -> list[tuple[str, str]]:
    items = api.anna.get(f"{V1}/jobs/{job_id}/tasks", params={"state": "ready"}).json()["items"]
    return [(task["step"], task["label"]) for task in items]


def test_a_frame_starts_when_the_same_frame_before_it_is_done(api: Api, engine: sa.Engine) -> None:
    _enrol(engine, slots=10)
    settings = {"frame_by_frame": True, "max_retries": 0}
    job_id = api.submit(api.anna, template=template("1-3", steps=("Render", "Comp")), settings=settings)
    first, second, third = _start(engine, job_id, 3)
    assert _ready(api, job_id) == []
    _end(engine, [second])
    assert _ready(api, job_id) == [("Comp", "2")]
    _end(engine, [first], Outcome.JOB_ERROR)
    assert _ready(api, job_id) == [("Comp", "2")]  # it may be tried again
    _end(engine, [third])
    assert _ready(api, job_id) == [("Comp", "2"), ("Comp", "3")]
    counts = api.anna.get(f"{V1}/jobs/{job_id}").json()["counts"]
    assert (counts["failed"], counts["cancelled"]) == (1, 1)  # comp of frame 1 never can
    api.anna.post(f"{V1}/jobs/{job_id}/retry", json={"states": ["failed", "cancelled"]})
    assert _ready(api, job_id) == [("Render", "1"), ("Comp", "2"), ("Comp", "3")]
    assert api.anna.get(f"{V1}/jobs/{job_id}").json()["counts"]["waiting"] == 1


def test_a_job_follows_another_frame_by_frame(api: Api, engine: sa.Engine) -> None:
    _enrol(engine, slots=10)
    render = api.submit(api.anna)
    started = _start(engine, render, 3)
    _end(engine, started[:1])
    settings = {"frame_by_frame": True, "depends_on": [render]}
    comp = api.submit(api.anna, template=template("1-5", steps=("Comp",)), settings=settings)
    view = api.anna.get(f"{V1}/jobs/{comp}").json()
    assert view["job"]["state"] == "active"
    assert _ready(api, comp) == [("Comp", "1")]
    _end(engine, started[1:])
    assert _ready(api, comp) == [("Comp", "1"), ("Comp", "2"), ("Comp", "3")]
    why = api.anna.get(f"{V1}/jobs/{comp}/why").json()["lines"]
    assert any(f"waits for job {render}" in line["text"] for line in why)
    wrong = api.anna.post(f"{V1}/jobs", json=submission("9-12", settings=settings))
    assert wrong.status_code == 400
    assert "does not have 11-12" in wrong.json()["error"]["message"]


# --- what the farm adds -----------------------------------------------------------------------------------


def test_the_farm_s_own_environments_surround_every_job(engine: sa.Engine, tmp_path: Path) -> None:
    environment = tmp_path / "conda.yaml"
    environment.write_text(
        "specificationVersion: environment-2023-09\nenvironment: {name: Conda, variables: {CONDA: 'yes'}}\n"
    )
    with open_api(engine, tmp_path, queue_environments=(environment,)) as api:
        headers = {"Idempotency-Key": "k"}
        first = api.anna.post(f"{V1}/jobs", json=submission(), headers=headers)
        again = api.anna.post(f"{V1}/jobs", json=submission(), headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        job_id = first.json()["job"]["id"]
        told = api.anna.get(f"{V1}/jobs/{job_id}/submission").json()
        assert [each["name"] for each in told["template"]["jobEnvironments"]] == ["Conda"]
        repeated = api.anna.post(f"{V1}/jobs", json=told).json()["job"]["id"]
        twice = api.anna.get(f"{V1}/jobs/{repeated}/submission").json()
        assert twice["template"] == told["template"]
