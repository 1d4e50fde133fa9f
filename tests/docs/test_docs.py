"""What the documents say of the code is so: states, file names, links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from farm.model.events import EventKind
from farm.wire import messages, queues

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_states_is_what_the_tables_say() -> None:
    make_states = load(DOCS / "make_states.py")

    told = (DOCS / "states.md").read_text(encoding="utf-8")

    assert told == make_states.page(), "run: python docs/make_states.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_room_is_on_the_map() -> None:
    told = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = [folder.parent for top in ("farm", "tests") for folder in (ROOT / top).glob("*/__init__.py")]

    named = [f"{room.relative_to(ROOT)}/" for room in (*rooms, ROOT / "workers", ROOT / "plugins")]

    assert [name for name in sorted(named) if f"`{name}`" not in told] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_project_that_is_named_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:farm|workers|plugins|tests|configs|docs)/[\w./-]*\w)(?:::\w+)?`",
        page.read_text(encoding="utf-8"),
    )

    assert [name for name in dict.fromkeys(named) if not (ROOT / name).exists()] == []


def test_every_message_and_queue_has_its_place_in_the_protocol() -> None:
    told = (DOCS / "protocol.md").read_text(encoding="utf-8")
    kinds = [name for name, kind in vars(messages).items() if hasattr(kind, "kind") and name[0].isupper()]
    names = [queues.REPORTS, queues.HEARTBEATS, queues.TELEMETRY, queues.NUDGES, queues.PARKED]

    assert len(kinds) > 10
    assert [name for name in kinds if f"`{name}`" not in told] == []
    assert [name for name in names if f"`{name}`" not in told] == []


def test_every_decision_has_a_number_of_its_own_and_is_listed() -> None:
    listed = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    decisions = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))

    assert [int(name[:4]) for name in decisions] == list(range(1, len(decisions) + 1))
    assert [name for name in decisions if f"({name})" not in listed] == []


def test_every_alarm_has_its_line_in_the_runbook() -> None:
    told = (DOCS / "runbook.md").read_text(encoding="utf-8")
    is_ordinary = re.compile(
        r"job-(submitted|changed|done|cancelled|removed)|task-(done|requeued)|node-(enrolled|online|drained|released)"
    )
    alarms = [kind for kind in EventKind if not is_ordinary.fullmatch(kind)]
    checks = set(
        re.findall(r'check ?= ?"([^"]+)"', (ROOT / "farm/cli/doctor.py").read_text(encoding="utf-8"))
    )

    assert len(alarms) > 10
    assert [kind for kind in alarms if f"`{kind}`" not in told] == []
    assert len(checks) > 10
    assert [check for check in checks if f"`{check}`" not in told] == []


def test_make_test_faults_looks_everywhere_where_there_is_one() -> None:
    """To collect all tests takes each of its processes longer than most of these tests."""
    makefile = (ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^FAULTS := (.*)$", makefile, re.M)
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    marked = {mark: {p for p in files if f"mark.{mark}" in p.read_text()} for mark in ("faults", "timed")}
    assert {str(path.relative_to(ROOT).parent) for path in marked["faults"]} == set(listed.split())
    assert {str(path.relative_to(ROOT).parent) for path in marked["timed"]} == {"tests/e2e"}
    assert "pytest tests/e2e -m 'faults and timed'" in makefile
