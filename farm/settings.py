"""One frozen `Settings`, from defaults, `farm.toml` and `FARM_*` variables (the later wins).

The only module that reads the environment. An unknown key, in the file or in the environment, is an error:
a misspelt setting must not silently mean its default. `configs/farm.toml` lists every key.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import secrets
import socket
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from farm.errors import UserError
from farm.flow.hooks import check_hook
from farm.flow.scaling import check_rule
from farm.model.hooks import Hook
from farm.model.limits import Limit, read_limit
from farm.model.scaling import ScaleRule
from farm.model.sharing import read_reservation
from farm.model.stalls import StallPolicy

CONFIG_PLACES = (Path("farm.toml"), Path("~/.config/ridgeline/farm.toml"), Path("/etc/ridgeline/farm.toml"))
_TABLES = frozenset(
    {"attributes", "amounts", "path_mapping", "hooks", "weights", "off_peak", "shares", "project_shares"}
    | {"limits", "max_running_of", "reservations", "power_caps_w", "scale"}
)
_NOT_SETTINGS = frozenset({"FARM_CONFIG", "FARM_ATTEMPT_ID"})


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "ridgeline"


def _node_name() -> str:
    return socket.gethostname().split(".")[0].lower() or "node"


class Settings(BaseModel):
    """Every key has a default that suits one workstation; `docs/operating.md` says what each does."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # where things are
    state_dir: Path = Field(default_factory=_state_dir)
    """Database, token, journal, spool and caches of this machine."""
    database_url: str = ""
    """Empty: SQLite in `state_dir`. Else `postgresql+psycopg://user:password@host/name`."""
    broker_url: str = "memory://localhost"
    """`memory://` (one process) or `amqp://user:password@host//` (`amqps://` with TLS)."""

    # the API, server side
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=7450, ge=0, le=65535)
    api_tls_certificate: Path | None = None
    api_tls_key: Path | None = None
    api_insecure: bool = False
    """Allow another address than loopback without TLS."""
    api_allowed_hosts: tuple[str, ...] = ()
    """Further `Host` headers to answer, such as the server's DNS name."""
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    max_tasks_per_job: int = Field(default=1_000_000, ge=1)
    queue_environments: tuple[Path, ...] = ()
    """Open Job Description environment templates, entered around the sessions of every job."""

    # hooks
    hooks: dict[str, Hook] = {}
    hook_hosts: tuple[str, ...] = ()
    """Hosts that webhooks may reach at private addresses, and without TLS."""
    mail_server: str = ""
    """HOST or HOST:PORT that takes mail without a password."""
    mail_from: str = ""

    # machines that join
    join_needs_approval: bool = False
    """A machine that joins by a code waits for `farm enrol NODE`, whatever `farm invite` says."""
    broker_host_for_nodes: str = ""
    """What nodes call the broker's machine. Empty: as in `broker_url`; where that is this very machine, the
    name by which the node reached the API."""
    broker_admin_url: str = Field(default="", repr=False)
    """RabbitMQ's management API, with an account that may make others: `http://user:password@host:15672`.
    Empty: `rabbitmqctl`, where the broker runs on this machine."""

    # the API, client side
    api_url: str = ""
    """Empty: what `farm up` or `farm serve` wrote into `state_dir`, else http://127.0.0.1:7450."""
    api_token: str = Field(default="", repr=False)
    """Empty: the token that the server wrote into `state_dir`."""

    # the scheduler
    policy: Literal["predictive", "fitness", "fifo"] = "predictive"
    weights: dict[str, bool | float | str] = {}
    """Of the predictive policy, over their defaults: `docs/matching.md` has the table."""
    off_peak: dict[str, bool | float | str] = {}
    """Other weights from `from_hour` (20) to `to_hour` (8), local time of the scheduler."""
    shares: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Of the farm (or of their project's share), by user; 1 for everybody else."""
    project_shares: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Of the farm, by project; 1 for every other one, and for all jobs of no project together."""
    limits: dict[str, Any] = {}
    """Of the whole farm, such as licences: `arnold = 10`, or `arnold = { amount = 10, per = "node" }`."""
    reservations: dict[str, Any] = {}
    """By pool, the share of its slots that is kept for urgent work: `gpu = 0.2`. docs/sharing.md."""
    power_caps_w: dict[str, Annotated[float, Field(gt=0)]] = {}
    """By pool, the watts that its devices may draw together, by their design power."""
    scale: dict[str, ScaleRule] = {}
    """What asks for more or fewer devices of a model, by price. docs/sharing.md."""
    preempt_from: int | None = Field(default=None, ge=1, le=100)
    """From this priority on jobs that ask for it (`--preempt`) may stop tasks of a lower one; None: none."""
    preempt_loss_s: float = Field(default=60.0, gt=0)
    """What has run longer than this is not stopped for others."""
    wide_patience_s: float | None = Field(default=900.0, gt=0)
    """A task for more than a slot that found no room for so long gets a node kept free for it."""
    max_running_per_user: int | None = Field(default=None, ge=0)
    """Tasks of one user that run at once; None: no limit."""
    max_running_of: dict[str, Annotated[int, Field(ge=0)]] = {}
    """The same for single users, by name, instead of `max_running_per_user`."""
    leader_ttl_s: float = Field(default=10.0, gt=0)
    lease_s: float = Field(default=30.0, gt=0)
    """A node silent for this long loses its attempts."""
    outage_s: float = Field(default=900.0, ge=0)
    """When more nodes fall silent at once than are heard, their attempts are kept so long; 0: not at all."""
    fence_s: float = Field(default=20.0, gt=0)
    """A node without an answer for this long ends its exclusive attempts itself."""
    heartbeat_s: float = Field(default=5.0, gt=0)
    relaunch_s: float = Field(default=10.0, gt=0)
    """An attempt that the node does not list this long after its launch is sent again."""
    idle_tick_s: float = Field(default=1.0, gt=0)
    """The scheduler looks for work at least this often; messages wake it at once."""
    batch: int = Field(default=500, ge=1)
    """Most reports, and most new attempts, in one transaction."""

    # stalls
    on_stall: StallPolicy = StallPolicy.MIGRATE
    """What is done about stalled attempts of jobs that do not say: `docs/stalls.md`."""
    stall_after_s: float = Field(default=120.0, ge=1.0)
    """An attempt that does nothing at all for so long beyond its usual time is taken for hung."""
    speculate: bool = True
    """At the end of all work, second copies of running tasks on idle devices expected to be faster."""

    # this node
    node_name: str = Field(default_factory=_node_name, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    pools: tuple[str, ...] = ("default",)
    slots: int | None = Field(default=None, ge=1, le=1024)
    """Attempts at once on the CPU; None: one for every two cores."""
    gpu_slots: int = Field(default=1, ge=1, le=64)
    """Attempts at once on each GPU; more than one packs short tasks, see `gpu_task_vram_mib`."""
    gpu_task_vram_mib: int = Field(default=0, ge=0)
    """Set aside on a GPU for each of its tasks that does not ask for more."""
    gpu_use_check_s: float = Field(default=5.0, ge=0)
    """An attempt on a GPU that shows no sign of it for this long has rendered on the CPU, and fails.
    0: nobody looks."""
    devices: str = ""
    """`FILE#NAME`: GPUs that this node claims to have, to try a farm without any. Empty: the real ones."""
    kill_grace_s: float = Field(default=2.0, ge=0)
    drain_grace_s: float = Field(default=300.0, ge=0)
    """How long a stopping agent lets running attempts finish."""
    allowed_roots: tuple[Path, ...] = ()
    """Outputs must lie below one of these; empty: anywhere the agent's user may write."""
    renderer_environment: tuple[str, ...] = ()
    """Further environment variables that renderers may see."""
    attributes: dict[str, tuple[str, ...]] = {}
    """OpenJD attributes of this node beyond the standard ones."""
    amounts: dict[str, float] = {}
    path_mapping: dict[str, str] = {}
    """Paths as submitted, and as this node sees them: {"Z:\\\\projects": "/mnt/projects"}."""

    @field_validator(
        "state_dir", "allowed_roots", "queue_environments", "api_tls_certificate", "api_tls_key", mode="after"
    )
    @classmethod
    def _expand_home(cls, value: Path | tuple[Path, ...] | None) -> Path | tuple[Path, ...] | None:
        if isinstance(value, tuple):
            return tuple(path.expanduser() for path in value)
        return value.expanduser() if value is not None else None

    @field_validator("limits", mode="after")
    @classmethod
    def _check_limits(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, declared in value.items():
            read_limit(name, declared)
        return value

    @field_validator("reservations", mode="after")
    @classmethod
    def _check_reservations(cls, value: dict[str, Any]) -> dict[str, Any]:
        for pool, declared in value.items():
            read_reservation(pool, declared)
        return value

    @model_validator(mode="after")
    def _hooks_can_work(self) -> Settings:
        for name, hook in self.hooks.items():
            check_hook(name, hook, hosts=self.hook_hosts)
            if hook.mail_to and not (self.mail_server and self.mail_from):
                raise ValueError(f"hook {name} sends mail: set mail_server and mail_from too")
        return self

    @model_validator(mode="after")
    def _scale_can_work(self) -> Settings:
        for name, rule in self.scale.items():
            check_rule(name, rule, hosts=self.hook_hosts)
        if self.scale and self.policy != "predictive":
            raise ValueError("scale goes by prices, which only the policy predictive sets")
        return self

    @model_validator(mode="after")
    def _node_ends_first(self) -> Settings:
        """A node must have ended an exclusive attempt itself before the farm takes it for lost."""
        node_s = self.fence_s + self.heartbeat_s + self.kill_grace_s
        if node_s >= self.lease_s:
            raise ValueError(
                f"fence_s + heartbeat_s + kill_grace_s is {node_s:g} s; it must be below lease_s "
                f"({self.lease_s:g} s), so that a node ends an attempt before the farm gives it to another"
            )
        return self

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'farm.db'}"

    @property
    def suspect_s(self) -> float:
        """A node that is silent for longer gets no new work; one that lives has spoken by then."""
        return self.heartbeat_s * 2.5

    @property
    def declared_limits(self) -> dict[str, Limit]:
        """Those that `limits` names."""
        found = [read_limit(name, value) for name, value in self.limits.items()]
        return {limit.name: limit for limit in found}

    @property
    def is_embedded(self) -> bool:
        return self.broker_url.startswith("memory:")


def _split_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples may be given as comma separated text (always so in the environment)."""
    split = dict(values)
    for key in (
        "pools",
        "allowed_roots",
        "queue_environments",
        "renderer_environment",
        "api_allowed_hosts",
        "hook_hosts",
    ):
        if isinstance(split.get(key), str):
            split[key] = tuple(part.strip() for part in split[key].split(",") if part.strip())
    return split


def config_file(environment: Mapping[str, str]) -> Path | None:
    """The file that settings are read from: `FARM_CONFIG`, else the first of `CONFIG_PLACES` that exists.

    Raises UserError for one that cannot be looked at.
    """
    named = environment.get("FARM_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not _is_file(path, "FARM_CONFIG names it"):
            raise UserError(f"FARM_CONFIG names {path}, which is not a file")
        return path
    places = (place.expanduser() for place in CONFIG_PLACES)
    return next((p for p in places if _is_file(p, "name another in FARM_CONFIG, or set HOME")), None)


def _is_file(path: Path, advice: str) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UserError(f"cannot look for settings at {path}: {error.strerror} ({advice})") from error


def load_settings(*, environment: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings from the file, `FARM_*` variables and `overrides` (strongest; None means "not given").

    Raises UserError that names the key, the place it came from and the nearest right key.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    path = config_file(environment)
    if path is not None:
        try:
            values = _split_lists(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
        for key in values:
            _check_key(key, str(path))
    for name, value in environment.items():
        is_ours = name.startswith("FARM_") and not name.startswith("FARM_TEST_")
        if is_ours and name not in _NOT_SETTINGS:
            key = name.removeprefix("FARM_").lower()
            _check_key(key, f"the environment ({name})")
            values |= _split_lists({key: value}) if key not in _TABLES else {key: _table(name, value)}
    values |= {key: value for key, value in overrides.items() if value is not None}
    try:
        return Settings(**values)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'together'}: {e['msg']}"
            for e in error.errors(include_url=False)
        ]
        raise UserError("settings are wrong: " + "; ".join(lines)) from error


def setting_sources(*, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where each setting's value comes from: "default", the file's path, or the variable's name.

    Raises UserError as `load_settings` does for a file that cannot be read.
    """
    environment = os.environ if environment is None else environment
    path = config_file(environment)
    try:
        in_file = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    sources = {key: str(path) if key in in_file else "default" for key in Settings.model_fields}
    for key in sources:
        if f"FARM_{key.upper()}" in environment:
            sources[key] = f"FARM_{key.upper()}"
    return sources


def _table(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(
            f'{name} must be a JSON object, such as \'{{"site": ["berlin"]}}\': {error}'
        ) from error


def _check_key(key: str, place: str) -> None:
    if key not in Settings.model_fields:
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; configs/farm.toml lists every key"
        raise UserError(f"unknown setting {key!r} in {place}{hint}")


def config_to_write() -> Path:
    """The file that a machine's own settings belong into: the one that is read, else the user's."""
    return config_file(os.environ) or CONFIG_PLACES[1].expanduser()


def given_in_environment(keys: Collection[str]) -> list[str]:
    """Those `FARM_*` variables that would win over these settings in a file."""
    return [name for key in keys if (name := f"FARM_{key.upper()}") in os.environ]


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others, not even for a moment. Raises UserError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


HOOK_VARIABLES = ("PATH", "HOME", "LANG", "LC_*", "TZ", "USER", "LOGNAME")
"""What a hook's command sees of this process's environment: no address of a broker, no token."""
TERMINAL_VARIABLES = (
    "TERM",
    "TERM_PROGRAM",
    "LC_TERMINAL",
    "KITTY_WINDOW_ID",
    "WT_SESSION",
    "TMUX",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "DBUS_SESSION_BUS_ADDRESS",
)
"""What tells which terminal, and whether there is a desktop."""


def failpoints_of_tests() -> str:
    """What FARM_TEST_FAILPOINTS says, for `farm.failpoints.arm`."""
    return os.environ.get("FARM_TEST_FAILPOINTS", "")


def inherited_environment(names: Collection[str]) -> dict[str, str]:
    """Those variables of this process that `names` lets through; a name may end in `*`."""
    exact = {name for name in names if not name.endswith("*")}
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {name: value for name, value in os.environ.items() if name in exact or name.startswith(starts)}
