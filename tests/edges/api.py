"""A farm's API for tests: a real database and real tokens, no network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from farm.http.app import make_app
from farm.settings import Settings
from farm.store import tokens
from farm.store.engine import writing

V1 = "/api/v1"


class Direct(httpx.BaseTransport):
    """Calls the application without a network, one event loop a request."""

    def __init__(self, app: FastAPI) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def call() -> httpx.Response:
            answer = await self._inner.handle_async_request(request)
            return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

        return asyncio.run(call())


class Api:
    """The API as `admin`, `anna` and `bert` (users) and nobody see it."""

    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self.engine = engine
        self.nudges = 0
        self.app: FastAPI = make_app(engine, settings, nudge=self._nudge)
        with writing(engine) as db:
            self.tokens = {
                name: tokens.create(db, name=f"{name}-laptop", user=name, role=role)
                for name, role in (("admin", "admin"), ("anna", "user"), ("bert", "user"))
            }
        self.nobody = httpx.Client(transport=Direct(self.app), base_url="http://localhost")
        self.admin, self.anna, self.bert = (self._client(name) for name in ("admin", "anna", "bert"))

    def _client(self, name: str) -> httpx.Client:
        return httpx.Client(
            transport=Direct(self.app),
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {self.tokens[name]}"},
        )

    def _nudge(self) -> None:
        self.nudges += 1

    def submit(self, client: httpx.Client, **changes: Any) -> int:
        """A job of the frames 1 to 10 in one step; returns its id."""
        answer = client.post(f"{V1}/jobs", json=submission(**changes))
        assert answer.status_code == 201, answer.text
        return int(answer.json()["job"]["id"])


@contextmanager
def open_api(engine: sa.Engine, state_dir: Path, **settings: Any) -> Iterator[Api]:
    api = Api(engine, Settings(state_dir=state_dir, **settings))
    try:
        yield api
    finally:
        for client in (api.nobody, api.admin, api.anna, api.bert):
            client.close()


def submission(frames: str = "1-10", **changes: Any) -> dict[str, Any]:
    return {"name": "shot", "template": template(frames), **changes}


def template(frames: str = "1-10", *, steps: tuple[str, ...] = ("Render",)) -> dict[str, Any]:
    """Steps over `frames`, each depending on the one before."""
    return {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "shot",
        "steps": [
            {
                "name": name,
                "parameterSpace": {
                    "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": frames}]
                },
                "script": {"actions": {"onRun": {"command": "true", "args": ["{{Task.Param.Frame}}"]}}},
                **({"dependencies": [{"dependsOn": steps[at - 1]}]} if at else {}),
            }
            for at, name in enumerate(steps)
        ],
    }
