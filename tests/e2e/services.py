"""Private RabbitMQ and PostgreSQL servers that a test may kill, pause and start again.

Each lives in a folder of the test's own on a free port of the loopback; only its own processes are ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import sqlalchemy as sa

from tests.conftest import missing
from tests.waiting import wait_until

ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""In front of a command line: pytest may be killed, and nothing of its own may live on."""

RABBITMQ = os.environ.get("FARM_TEST_RABBITMQ", "")
"""A directory with `rabbitmq-server`, `rabbitmqctl` and `epmd`: tests start servers of that release."""
_DENIED = ("global_qos", "transient_nonexcl_queues")
"""What 3.12 and later only warn of, and 4.3 refuses."""


def add_vhost() -> str:
    """The URL of a virtual host of its own on the machine's RabbitMQ: farms must not share queues."""
    name = f"farm_test_{uuid.uuid4().hex[:12]}"
    try:
        _rabbitmqctl("eval", _adding_vhost(name))
    except (OSError, subprocess.SubprocessError) as error:
        missing("RabbitMQ", error)
    return f"amqp://guest:guest@127.0.0.1:5672/{name}"


def remove_vhost(url: str) -> None:
    _rabbitmqctl("delete_vhost", url.rpartition("/")[2])


def _adding_vhost(name: str) -> str:
    """Erlang that makes it, for the guest. In one: most of a command's time goes into starting an Erlang."""
    may = ", ".join(['<<".*">>'] * 3)
    grant = "rabbit_auth_backend_internal:set_permissions"
    add = f'rabbit_vhost:add(<<"{name}">>, <<"guest">>)'
    return f'{add}, {grant}(<<"guest">>, <<"{name}">>, {may}, <<"guest">>).'


def _rabbitmqctl(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *arguments], check=True, timeout=60, capture_output=True, cwd="/")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class PrivatePostgres:
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """An empty one."""
        self._make_place()
        subprocess.run(
            [
                *self._as_user,
                str(self._bin / "initdb"),
                "-D",
                str(self._data),
                "-U",
                "postgres",
                "-A",
                "trust",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._configure("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nshared_buffers = 32MB")

    def follow(self, primary: PrivatePostgres, *, through: int) -> None:
        """Instead of `create`: a standby of another one, which it reaches at the port `through`."""
        self._make_place()
        copy = [
            str(self._bin / "pg_basebackup"),
            "-D",
            str(self._data),
            "-h",
            "127.0.0.1",
            "-p",
            str(through),
        ]
        options = ["-U", "postgres", "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"]
        subprocess.run([*self._as_user, *copy, *options], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self._configure("")

    def has_caught_up(self, primary: PrivatePostgres) -> bool:
        written = primary.sql("SELECT pg_current_wal_lsn()")
        return bool(self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'"))

    def promote(self) -> None:
        assert self.sql("SELECT pg_promote()") is True

    def _make_place(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found:
            missing("PostgreSQL", "its server programs are not installed")
        self._bin = found[-1].parent
        # Not below pytest's own directories: each pytest that starts closes them to others, nobody included.
        self._data = data = Path(tempfile.mkdtemp(prefix="farm-test-postgres-"))
        # The server refuses to run as root.
        self._as_user = [*ENDS_WITH_US, "--"]
        if os.geteuid() == 0:
            self._as_user = [*ENDS_WITH_US, "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]
            shutil.chown(data, "nobody", "nogroup")

    def _configure(self, text: str) -> None:
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(f"{text}\nport = {self.port}\n")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._as_user, str(self._bin / "postgres"), "-D", str(self._data)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "PostgreSQL answers")

    def _answers(self) -> bool:
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def add_database(self) -> str:
        """The URL of an empty database of its own."""
        name = f"farm_{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url.removesuffix("postgres") + name

    def sql(self, statement: str) -> object:
        """Run it; its first value, None for one that tells nothing."""
        engine = sa.create_engine(
            self.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        try:
            with engine.connect() as db:
                done = db.exec_driver_sql(statement)
                return done.scalar() if done.returns_rows else None
        finally:
            engine.dispose()

    def kill(self) -> None:
        """As a power cut for the server: no shutdown, all backends at once."""
        if self.process is not None:
            # Each backend is a group of its own; one that lives on keeps the next server from starting.
            server = psutil.Process(self.process.pid)
            server.suspend()
            backends = server.children(recursive=True)
            for process in (server, *backends):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait(10)
            wait_until(lambda: not any(map(_is_alive, backends)), "the end of PostgreSQL's backends")
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class PrivateRabbit:
    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    denies: bool = bool(RABBITMQ)
    """Refuse what 4.3 refuses. Not in a cluster: there 4.0 takes it for used, and does not start again."""
    management_port: int = 0
    """Of its management API; 0: it has none."""
    _dist_port: int = field(default_factory=free_port)
    _epmd_port: int = field(default_factory=free_port)
    _epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def create(self, *, beside: PrivateRabbit | None = None) -> None:
        """beside: another one, whose cluster it can then `join`."""
        programs = Path(RABBITMQ or "/usr/lib/rabbitmq/bin")
        self._server = programs / "rabbitmq-server"
        epmd = shutil.which("epmd", path=str(programs) if RABBITMQ else None)
        if not self._server.exists() or epmd is None:
            missing("RabbitMQ", "its server program is not installed")
            return
        home = self.folder / "home"
        home.mkdir(parents=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text("ridgeline-test")
        cookie.chmod(0o400)
        plugins = "rabbitmq_management" if self.management_port else ""
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "disk_free_limit.absolute = 50MB\n"
            "vm_memory_high_watermark.absolute = 512MB\n"
            "heartbeat = 10\n"
            + (
                f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
                if plugins
                else ""
            )
            + "".join(f"deprecated_features.permit.{name} = false\n" for name in _DENIED if self.denies)
        )
        if beside is not None:
            self._epmd_port = beside._epmd_port
            return
        self._epmd = subprocess.Popen(
            [*ENDS_WITH_US, "--", epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def add_vhost(self) -> str:
        """The URL of a virtual host of its own."""
        name = f"farm_{uuid.uuid4().hex[:12]}"
        self.control("eval", _adding_vhost(name))
        return self.url.removesuffix("/") + name

    def join(self, other: PrivateRabbit) -> None:
        """Become one broker with it."""
        self.control("stop_app")
        self.control("join_cluster", f"t{other.port}@localhost")
        self.control("start_app")

    def control(self, *words: str) -> None:
        """Run `rabbitmqctl` on it."""
        subprocess.run(
            [str(self._server.with_name("rabbitmqctl")), "-q", *words],
            env=self._environment(),
            cwd="/",
            check=True,
            capture_output=True,
            timeout=180,
        )

    def _environment(self) -> dict[str, str]:
        node = f"t{self.port}@localhost"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": str(self.folder / "log" / "rabbit.log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1",
        }

    def _contained(self) -> list[str]:
        """Its start script leaves the server as a child that would outlive it."""
        namespace = ("unshare", "--pid", "--fork", "--kill-child", "--") if os.geteuid() == 0 else ()
        return [*ENDS_WITH_US, "--", *namespace]

    def start(self) -> None:
        (self.folder / "log").mkdir(exist_ok=True)
        with (self.folder / "log" / "console.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._contained(), str(self._server)],
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "RabbitMQ answers", timeout_s=180)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"AMQP\0\0\x09\x01")
                return len(connection.recv(8)) > 0
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            self.process = None

    def remove(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(10)
