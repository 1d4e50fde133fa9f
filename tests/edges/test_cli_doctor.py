"""`farm doctor`, `farm db` and `farm config`: findings with advice, whole backups, no secrets shown."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from farm.cli import doctor
from farm.cli.client import CLIENT_FILE
from farm.cli.config import hide_password, masked
from farm.cli.doctor import Finding, Level
from farm.cli.plugins import load_plugins
from farm.model.machines import Device, DeviceKind
from farm.settings import Settings, load_settings, setting_sources
from farm.store import schema
from farm.store.engine import open_engine
from tests.edges.cli_farm import Cli, FakeFarm, a_farm

CONFIGS = Path(__file__).parents[2] / "configs"


def worst(findings: list[Finding]) -> Finding:
    order = list(Level)
    return max(findings, key=lambda finding: order.index(finding.level))


def findings(cli: Cli) -> dict[str, list[dict[str, str]]]:
    result = cli("doctor", "--json")
    found: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(result.out):
        found.setdefault(finding["check"], []).append(finding)
    return found


# --- doctor -------------------------------------------------------------------------------------------


def test_a_healthy_workstation_has_no_error(cli: Cli, farm: FakeFarm) -> None:

    farm.answer("GET", "/farm", a_farm(now=time.time()))
    cli.good("db", "upgrade")
    found = findings(cli)
    assert cli("doctor").status == 0
    assert found["schema"][0]["level"] == "ok"
    assert found["server"][0]["level"] == "ok"
    assert found["clock"][0]["level"] == "ok"
    assert found["broker"][0]["level"] == "ok"
    assert {"containment", "disk", "renderer", "SQLite"} <= set(found)


def test_gpus_and_what_is_wrong_with_them_are_told() -> None:
    card = Device(id="GPU-1", kind=DeviceKind.GPU, model="NVIDIA L40S")
    seen = doctor.GpusSeen(
        devices=(card,), faults=("NVIDIA L4: lost: it has fallen off the bus",), notes=("no NVIDIA driver",)
    )
    told = list(doctor.check_gpus(seen))
    assert [(finding.level, finding.text) for finding in told] == [
        (Level.OK, "NVIDIA L40S"),
        (Level.ERROR, "NVIDIA L4: lost: it has fallen off the bus"),
        (Level.NOTE, "no NVIDIA driver"),
    ]
    assert "docs/gpus.md" in told[1].advice
    drained = list(doctor.check_gpus(doctor.GpusSeen(node_fault="driver and library differ: reboot")))
    assert "reboot" in worst(drained).text
    assert worst(drained).level is Level.ERROR


def test_a_machine_without_a_farm_is_no_error_but_told(lonely_cli: Cli) -> None:
    found = findings(lonely_cli)
    assert found["server"][0]["level"] == "warning"
    assert found["server"][0]["advice"]
    assert found["database"][0]["level"] == "note"
    assert not (lonely_cli.folder / "state").exists(), "a check makes nothing"


def test_a_farm_without_scheduler_and_nodes_is_told(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/farm", a_farm(leader=None, nodes=0, nodes_online=0))
    found = findings(cli)
    assert found["scheduler"][0]["level"] == "error"
    assert "farm scheduler" in found["scheduler"][0]["advice"]
    assert found["nodes"][0]["level"] == "warning"
    assert found["clock"][0]["level"] == "warning", "the fake farm's clock stands still"
    assert cli("doctor").status == 1


def test_a_token_that_others_can_read_is_an_error(lonely_cli: Cli) -> None:
    state = lonely_cli.folder / "state"
    state.mkdir()
    token = state / CLIENT_FILE
    token.write_text("{}")
    token.chmod(0o644)
    found = {finding.check: finding for finding in doctor.check_state_dir(state)}
    assert found["token file"].level is Level.ERROR
    assert "chmod 600" in found["token file"].advice
    token.chmod(0o600)
    assert worst(list(doctor.check_state_dir(state))).level is Level.OK


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("amqp://guest:guest@rabbit.example//", Level.ERROR),
        ("amqp://rabbit.example//", Level.ERROR),
        ("amqp://localhost//", Level.NOTE),
        ("amqp://guest@127.0.0.1:5672//", Level.NOTE),
        ("amqp://guest@[::1]//", Level.NOTE),
        ("amqp://farm:secret@rabbit.example//", None),
    ],
)
def test_the_default_account_is_an_error_where_others_reach_it(url: str, level: Level | None) -> None:
    found = list(doctor.check_account(url))
    assert [finding.level for finding in found] == ([] if level is None else [level])
    assert all(finding.advice for finding in found)


@pytest.mark.parametrize(
    ("product", "version", "level"),
    [
        ("RabbitMQ", "3.9.13", Level.ERROR),
        ("RabbitMQ", "3.10.8", Level.NOTE),
        ("RabbitMQ", "3.13.7", Level.NOTE),
        ("RabbitMQ", "4.3.1", Level.OK),
        ("RabbitMQ", "unknown", Level.WARNING),
        ("LavinMQ", "2.0.0", Level.WARNING),
    ],
)
def test_the_brokers_version_is_judged(product: str, version: str, level: Level) -> None:
    assert doctor.check_rabbitmq(product, version).level is level


def test_a_broker_that_is_away_is_an_error_without_its_password() -> None:
    found = list(doctor.check_broker("amqp://farm:hunter2@127.0.0.1:9//"))
    assert worst(found).level is Level.ERROR
    assert all("hunter2" not in finding.text + finding.advice for finding in found)


def test_a_database_that_is_away_is_an_error_without_its_password() -> None:
    settings = Settings(database_url="postgresql+psycopg://farm:hunter2@127.0.0.1:9/farm")
    found = list(doctor.check_database(settings))
    assert worst(found).level is Level.ERROR
    assert all("hunter2" not in finding.text + finding.advice for finding in found)


@pytest.mark.parametrize("found", [None, "0001", "9999"])
def test_a_schema_of_another_version_is_an_error_with_advice(found: str | None) -> None:
    finding = doctor.check_schema(found, "0002")
    assert finding.level is Level.ERROR
    assert finding.advice
    assert doctor.check_schema("0002", "0002").level is Level.OK


@pytest.mark.parametrize(
    ("asked", "answer", "answered", "level"),
    [
        (100.0, 100.1, 100.2, Level.OK),
        (100.0, 104.0, 100.2, Level.OK),
        (100.0, 160.0, 100.2, Level.WARNING),
        (160.0, 100.0, 160.2, Level.WARNING),
        (100.0, 120.0, 130.0, Level.OK),
    ],
)
def test_clocks_are_compared_within_the_time_of_asking(
    asked: float, answer: float, answered: float, level: Level
) -> None:
    finding = doctor.check_clock(asked, answer, answered)
    assert finding.level is level
    if level is Level.WARNING:
        assert ("ahead of" in finding.text) is (asked > answer)


@pytest.mark.parametrize(
    ("present", "told"),
    [
        ((), "apt install blender ffmpeg inkscape povray synfig (Debian); install arnold, "),
        (("blender", "povray"), "apt install ffmpeg inkscape synfig (Debian); install arnold, "),
        (("blender", "povray", "ffmpeg", "inkscape", "synfig"), "to render with one: install arnold, "),
        (("arnold",), "synfig (Debian); install houdini, "),
    ],
)
def test_each_absent_renderer_is_told_how_to_be_had(
    present: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins, broken = load_plugins()
    for name in present:
        plugins[name] = replace(plugins[name], version=lambda: "1.0")
    monkeypatch.setattr(doctor, "load_plugins", lambda: (plugins, broken))
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = [f for f in doctor.check_renderers() if f.text.startswith("not on this machine")]
    assert told in finding.advice
    assert "apt" not in finding.advice.partition("arnold, ")[2]


def test_renderers_without_containment_are_told() -> None:
    assert next(doctor.check_containment(lambda: "subreaper")).level is Level.WARNING
    assert next(doctor.check_containment(lambda: "pid-namespace")).level is Level.OK


def test_a_disk_is_looked_at_before_its_directory_exists(tmp_path: Path) -> None:
    found = list(doctor.check_disk((tmp_path / "not" / "yet", tmp_path, tmp_path)))
    assert len(found) == 2
    assert all("free" in finding.text for finding in found)


# --- the database -------------------------------------------------------------------------------------


@pytest.fixture
def upgraded(lonely_cli: Cli) -> Path:
    lonely_cli.good("db", "upgrade")
    return lonely_cli.folder / "state" / "farm.db"


def test_an_upgrade_is_told_and_repeats_to_nothing(lonely_cli: Cli, upgraded: Path) -> None:
    assert "already" in lonely_cli.good("db", "upgrade")
    assert json.loads(lonely_cli.good("db", "upgrade", "--json")) == {
        "before": schema.HEAD,
        "version": schema.HEAD,
    }
    assert json.loads(lonely_cli.good("db", "version", "--json")) == {
        "version": schema.HEAD,
        "needed": schema.HEAD,
    }


def test_looking_at_the_version_makes_no_database(lonely_cli: Cli) -> None:
    assert "no database" in lonely_cli.bad("db", "version")
    assert not (lonely_cli.folder / "state").exists()


def test_a_backup_holds_what_is_still_in_the_write_ahead_log(lonely_cli: Cli, upgraded: Path) -> None:
    with closing(sqlite3.connect(upgraded)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("CREATE TABLE proof (n INTEGER)")
        db.executemany("INSERT INTO proof VALUES (?)", [(n,) for n in range(100)])
        db.commit()
        lonely_cli.good("db", "backup", "copy.db")
    with closing(sqlite3.connect(lonely_cli.folder / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM proof").fetchone() == (100,)
    engine = open_engine(f"sqlite:///{lonely_cli.folder / 'copy.db'}")
    schema.check(engine)
    engine.dispose()
    assert not list(lonely_cli.folder.glob("*.partial*"))


def test_a_backup_is_whole_while_others_write(lonely_cli: Cli, upgraded: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(upgraded, timeout=30)) as db:
            db.execute("CREATE TABLE pairs (a INTEGER, b INTEGER)")
            number = 0
            while not stop.is_set():
                with db:
                    db.execute("INSERT INTO pairs VALUES (?, ?)", (number, number))
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        lonely_cli.good("db", "backup", "copy.db")
    finally:
        stop.set()
        writer.join(30)
    with closing(sqlite3.connect(lonely_cli.folder / "copy.db")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_backup_never_replaces_a_file(lonely_cli: Cli, upgraded: Path) -> None:
    target = lonely_cli.folder / "monday.db"
    target.write_text("precious")
    assert "monday.db exists" in lonely_cli.bad("db", "backup", "monday.db")
    assert target.read_text() == "precious"
    assert "does not exist" in lonely_cli.bad("db", "backup", "nowhere/monday.db")


def test_the_command_is_printed_where_postgresql_has_no_program(lonely_cli: Cli) -> None:
    lonely_cli.patch.setenv("FARM_DATABASE_URL", "postgresql+psycopg://farm:hunter2@db.example:5433/farm")
    lonely_cli.patch.setenv("PATH", str(lonely_cli.folder))  # where it is not installed
    result = lonely_cli("db", "backup", "my backup.dump")
    assert result.status == 0
    assert result.out.startswith("pg_dump ")
    assert "--host=db.example" in result.out
    assert "'--file=my backup.dump'" in result.out
    assert "hunter2" not in result.out + result.err
    asked = json.loads(lonely_cli.good("db", "backup", "my backup.dump", "--json"))["command"]
    assert (asked[0], asked[2]) == ("pg_dump", "--file=my backup.dump")


# --- settings -----------------------------------------------------------------------------------------


def test_every_setting_is_shown_with_its_source(lonely_cli: Cli) -> None:
    (lonely_cli.folder / "farm.toml").write_text("lease_s = 60.0\n")
    shown = json.loads(lonely_cli.good("config", "show", "--json"))
    assert list(shown) == sorted(Settings.model_fields)
    assert shown["lease_s"] == {"value": 60.0, "source": "farm.toml"}
    assert shown["api_url"]["source"] == "FARM_API_URL"
    assert shown["batch"]["source"] == "default"
    table = lonely_cli.good("config", "show")
    assert all(len(line) <= 80 for line in table.splitlines())


def test_secrets_are_never_shown(lonely_cli: Cli) -> None:
    lonely_cli.patch.setenv("FARM_API_TOKEN", "rl_hunter2")
    lonely_cli.patch.setenv("FARM_DATABASE_URL", "postgresql+psycopg://farm:hunter2@db/farm")
    lonely_cli.patch.setenv("FARM_BROKER_URL", "amqp://farm:hunter2%40x@rabbit//")
    for words in (("config", "show"), ("config", "show", "--json")):
        assert "hunter2" not in lonely_cli.good(*words)
    assert hide_password("amqp://farm:se:cret@rabbit//") == "amqp://farm:********@rabbit//"
    assert hide_password("sqlite:////tmp/a@b:c/farm.db") == "sqlite:////tmp/a@b:c/farm.db"
    assert masked(Settings())["api_token"] == ""


def _commented(path: Path) -> dict[str, str]:
    """Setting -> its line, without the `#` in front."""
    lines = [line.removeprefix("#") for line in path.read_text(encoding="utf-8").splitlines()]
    return {line.partition(" ")[0]: line for line in lines if line[:1].isalpha() and " = " in line}


def test_the_example_lists_every_setting_with_its_default(lonely_cli: Cli) -> None:
    listed = _commented(CONFIGS / "farm.toml")
    assert list(listed) == list(Settings.model_fields), "all of them, in the order of the code"
    (lonely_cli.folder / "all.toml").write_text("\n".join(listed.values()), encoding="utf-8")
    told = load_settings(environment={"FARM_CONFIG": str(lonely_cli.folder / "all.toml")})
    default = Settings()
    of_this_machine = {"state_dir", "node_name", "slots", "api_tls_certificate", "api_tls_key"}
    without = {"preempt_from", "max_running_per_user"}
    for key in set(Settings.model_fields) - of_this_machine - without:
        assert getattr(told, key) == getattr(default, key), key


def test_every_setting_of_the_example_says_why() -> None:
    lines = (CONFIGS / "farm.toml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#") and line[1:2].isalpha():
            assert lines[number - 1].startswith(("# ", "#api_tls", "#attributes")), line


@pytest.mark.parametrize("name", ["farm", "facility", "studio"])
def test_the_examples_are_valid(name: str) -> None:
    load_settings(environment={"FARM_CONFIG": str(CONFIGS / f"{name}.toml")})


def test_sources_follow_the_order_of_strength(tmp_path: Path) -> None:
    path = tmp_path / "farm.toml"
    path.write_text('policy = "fifo"\nbatch = 7\n')
    sources = setting_sources(environment={"FARM_CONFIG": str(path), "FARM_BATCH": "9"})
    assert sources["policy"] == str(path)
    assert sources["batch"] == "FARM_BATCH"
    assert sources["lease_s"] == "default"
