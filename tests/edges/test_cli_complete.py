"""What the shell offers after Tab."""

from __future__ import annotations

import pytest

from farm.cli import complete
from farm.model.states import JobState
from tests.edges.cli_farm import Cli, FakeFarm, a_job, a_node, a_view, page


def offered(cli: Cli, *words: str) -> list[str]:
    """As bash asks: the last word is being typed."""
    cli.patch.setenv("_FARM_COMPLETE", "complete_bash")
    cli.patch.setenv("COMP_WORDS", " ".join(("farm", *words)))
    cli.patch.setenv("COMP_CWORD", str(len(words)))
    result = cli()
    assert "Traceback" not in result.err
    return result.out.split()


def test_jobs_and_nodes_come_from_the_farm(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs", page(a_view()))
    farm.answer("GET", "/nodes", page(a_node()))
    assert offered(cli, "pause", "1") == ["12"]
    assert offered(cli, "pause", "2") == []
    assert offered(cli, "drain", "bl") == ["blade-3"]


def test_an_answer_that_is_no_list_of_jobs_offers_nothing(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs", page({"job": {"id": 12}}))
    farm.answer("GET", "/nodes", {"nodes": []})
    assert offered(cli, "pause", "1") == []
    assert offered(cli, "drain", "bl") == []


def test_without_a_farm_nothing_is_offered_and_nothing_said(lonely_cli: Cli) -> None:
    assert offered(lonely_cli, "pause", "1") == []
    lonely_cli.patch.setenv("FARM_API_PROT", "1")  # a wrong setting
    assert offered(lonely_cli, "drain", "b") == []


def test_states_fields_and_orders_are_known_without_a_farm(lonely_cli: Cli) -> None:
    assert offered(lonely_cli, "jobs", "--state", "fa") == ["failed"]
    assert offered(lonely_cli, "nodes", "--columns", "name,vr") == ["name,vram"]
    assert [name for name, _ in complete.order("-vr", "nodes")] == ["-vram"]
    assert offered(lonely_cli, "jobs", "sta") == ["state="]


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("state=", [f"state={state}" for state in JobState]),
        ("state=done,fa", ["state=done,failed"]),
        ("state!=fa", ["state!=failed"]),
        ("state=failed and us", ["state=failed and user~"]),
        ("age", ["age"]),
        ("xyz", []),
    ],
)
def test_the_last_word_of_a_filter_is_completed(typed: str, offers: list[str]) -> None:
    assert [name for name, _ in complete.filters(typed, "jobs")] == offers


def test_commands_of_a_group_that_lists_are_offered(lonely_cli: Cli) -> None:
    assert offered(lonely_cli, "limits", "se") == ["set"]
    assert offered(lonely_cli, "limits", "list", "wa") == ["waiting"]
    assert "replay" in offered(lonely_cli, "parked", "")
    assert offered(lonely_cli, "stalled", "--columns", "job,na") == ["job,name"]


def test_names_of_people_cannot_break_the_line(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs", page(a_view(a_job(name="x\n13\x1b[2J"))))
    ((number, told),) = complete.jobs("")
    assert number == "12"
    assert told.isprintable()
