"""The live view against the real API: both must mean the same by every field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.cli.client import Client
from farm.http.server import serve
from farm.live.plain import overview
from farm.live.render import render
from farm.live.snapshot import fetch
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings
from farm.store import nodes, schema, tokens
from farm.store.engine import open_engine, writing
from farm.wire.messages import Heartbeat

SUBMISSION = {
    "name": "渲染 [red]shot[/]",
    "template": {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "shot",
        "steps": [
            {
                "name": "render",
                "parameterSpace": {
                    "taskParameterDefinitions": [{"name": "F", "type": "INT", "range": "1-12"}]
                },
                "script": {"actions": {"onRun": {"command": "true"}}},
            }
        ],
    },
}


def test_what_the_api_tells_is_shown(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, api_port=0)
    engine = open_engine(settings.database)
    schema.upgrade(engine)
    beat = Heartbeat(
        node_id=NodeId("ws-anna"),
        session="s",
        boot_id="b",
        sequence=1,
        capabilities=Capabilities(
            devices=(Device(id="cpu", kind=DeviceKind.CPU, model="Ryzen 5950X", slots=8),)
        ),
    )
    with writing(engine) as db:
        token = tokens.create(db, name="anna", user="anna", role="admin")
        nodes.heard(db, beat, rival_s=30)
    serving = serve(engine, settings, nudge=lambda: None)
    client = Client(serving.url, token)

    def get(path: str, query: Mapping[str, Any]) -> Any:
        return client.request("GET", path, query=query)

    try:
        client.post("/jobs", SUBMISSION)
        snapshot = fetch(get)
    finally:
        client.close()
        serving.stop()
        engine.dispose()

    picture = render(snapshot, 200, 50, colour=False).plain
    assert "nodes 1/1" in picture
    assert "渲染 [red]shot[/]" in picture
    assert "0/12" in picture
    assert "Ryzen 5950X" in picture
    assert "node-enrolled" in picture
    (told,) = (line for line in overview(snapshot) if line.startswith("job 1"))
    assert "active, 0 of 12 tasks done (0%)" in told
