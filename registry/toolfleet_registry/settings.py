"""Declares every setting of the fleet, its default and the reason for it.

Read from, first wins: arguments, the environment (`TOOLFLEET_…`), the nearest `toolfleet.toml`, the run file of a
running `toolfleet up`. A wrong one is one sentence at start, never a surprise later.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from toolfleet_registry.config import setting_sources
from toolfleet_registry.config.agent_profile import AgentSettings
from toolfleet_registry.config.gateway_settings import GatewaySettings
from toolfleet_registry.config.host_settings import HostSettings
from toolfleet_registry.config.run_file import find_run_file
from toolfleet_registry.config.setting_values import Count, Mapped, Names, Networks, read_json, read_switched
from toolfleet_registry.config.webhook_settings import ApprovalSettings, JobSettings, WebhookSettings
from toolfleet_registry.contracts import CostClass
from toolfleet_registry.contracts.message import DEFERS_BUILD, Seconds
from toolfleet_registry.contracts.names import ARTIFACTS, LOCAL, PROGRAMS, SCHEDULER, is_module_name
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.headers import check_headers
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.urls import (
    check_broker_url,
    check_redis_url,
    fleet_url,
    is_http_url,
    is_redis_url,
    is_sentinel_url,
)
from toolfleet_registry.signing import SigningSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = setting_sources.PREFIX

NULL = "null"
"""The text of a variable for a setting without a value, also where a `toolfleet.toml` has one. An empty variable counts as unset."""
HARD_LIMIT_MARGIN = 10  # seconds from a call's limit to Celery's hard limit: time to report the soft one
LONGEST_RETRY_DELAY = 30  # seconds: the longest Retry-After that is honoured
_LEASE_SECONDS = 60  # a killed worker's calls come back within about a minute
_RABBITMQ_LEASE_SECONDS = 7200  # RabbitMQ has no leases: delays of calls in its queues are held against this
_MANIFEST_TTL_SECONDS = 3600
_HOST_KINDS = frozenset({"folder", "mcp", "openapi"})  # of a host, which pydantic puts into the place
_SHORTEST_LEASE_SECONDS = 2  # below, a worker that is briefly busy renews too late


class _SetVariables(PydanticBaseSettingsSource):
    """Reads the variables that are set. The source that it wraps looks at every setting: most of the time that reading them all takes."""

    def __init__(self, source: PydanticBaseSettingsSource) -> None:
        super().__init__(source.settings_cls)
        self._source = cast("EnvSettingsSource", source)  # pydantic-settings declares its base class

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the text of a variable, the setting's name, and whether the text is JSON."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """Return the values of the variables, by the names of their settings."""
        found = dict[str, Any]()
        for name, field in self.settings_cls.model_fields.items():
            if f"{PREFIX}{name}".lower() in self._source.env_vars:
                text, key, is_json = self.get_field_value(field, name)
                value = self._source.prepare_field_value(name, field, text, is_json)
                found[key] = None if text == NULL else value
        return found | setting_sources.removed_in(self._source.env_vars)


class OverloadSettings(BaseSettings, defer_build=True):
    """Bounds of callers, modules and workers, and when a module counts as away."""

    worker_concurrency: Annotated[int, Field(gt=0, le=100_000)] = 1000
    """Calls that can run at once in one worker process: its slots. If one module holds half of them, the other
    modules get up to a quarter more. Each running call takes about 23 kB of memory."""
    backlog_limit: Count = 10_000
    """Calls that can wait in the queue of a module. Further calls are told `busy`, because they would hardly be
    answered in time."""
    max_arguments_bytes: Annotated[int, Field(gt=0)] = 2**20
    """The largest arguments of a call, as the JSON that is published. Larger ones would take an agent or a worker
    more than 20 ms to read, check and write, and delay all other calls. Use one value for agents and workers."""
    unserved_seconds: Annotated[float, Field(ge=0)] = 5
    """How long a module can be without a worker before its calls are told `busy`. A worker that was killed is usually
    back by then. `inf`: calls always wait for a worker."""
    scale_from_zero_lanes: Names[Literal["fast", "slow"]] = frozenset()
    """Lanes whose workers are only started when calls wait for them. Calls of these lanes always wait for a
    worker."""
    module_concurrency: Mapped[str, Count] = {}
    """Module name -> calls that can run at once in this module, over all workers. Without an entry: as many as there
    are slots."""
    calls_per_caller: Count | None = None
    """Unfinished calls that a caller can have in a lane. None: twice the slots of the lane's workers, so that no slot
    stays unused."""
    backlog_bytes: Count = 256 * 2**20
    """Approximate bytes of the calls that can wait in the queue of a module: a few hundred large calls fill a Redis
    as ten thousand small ones do not.

    Calls smaller than `backlog_bytes` / `backlog_limit` (26 kB by default) are limited by their number only.
    """
    stored_bytes_per_caller: Count = 256 * 2**20
    """Bytes that can be stored for a user, before further calls are told `busy`: results that were not fetched yet or
    were fetched just now, and calls that wait for approvals, which count with 16 KiB at least."""
    cost_budgets: Mapped[CostClass, Count] = {}
    """Cost class (`free`, `cheap`, `expensive`) -> calls that a user can make in a UTC day. Use one value for agents
    and workers."""


class MetricsSettings(BaseSettings, defer_build=True):
    """Settings of metrics.

    Without a port nothing is counted, except in a gateway, which serves `GET /metrics` to operators.
    """

    metrics_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """The port of `GET /metrics` for Prometheus, in each worker, gateway and host. If it is taken, the next free one
    of the 15 after it is used, because processes that share a machine share this setting. None: no port."""
    metrics_address: str = "127.0.0.1"
    """The address of `metrics_port`. A Prometheus on another machine needs 0.0.0.0; all who reach the address can
    read the names of modules and tools."""


class TraceSettings(BaseSettings, defer_build=True):
    """Settings of traces. OpenTelemetry's own variables say where traces go, and how many are kept."""

    traces: bool | None = None
    """Whether this process writes traces. None: it does if it has a provider of OpenTelemetry, or if
    OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    trace_contents: bool = False
    """Whether traces contain arguments and results. Sensitive ones, and those that can be personal data, are always
    left out."""


class ModuleSpec(ToolLines):
    """One `[module.NAME]`, of a module of any kind."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ModuleSettings(BaseSettings, defer_build=True):
    """Settings of modules' networks, and of the headers that they are sent with each request."""

    module: Mapped[str, ModuleSpec] = {}
    """Module name -> facts about its tools: `[module.owls]` with `effects = {count = "read"}` for tools that do not
    declare their effect, `permission = "admin"`, which raises the permission that they need, and `approval =
    ["pay"]`, the tools whose calls people approve (`approvers` names these people; otherwise admins do);
    `concurrency = {push = {key = "repository"}}` has calls with the same argument wait for their turn. Set it for
    all workers and beat: they store it with the module's manifest, where agents read it."""
    module_headers: Mapped[str, dict[str, SecretStr]] = Field(default={}, repr=False)
    """JSON: module name -> header -> value. The headers are sent with each request to the module, such as
    `Authorization` with a token. For workers; an agent uses them only if there is no fleet. They are read at start,
    and never logged or shown."""

    module_networks: Networks = ()
    """The networks, as CIDRs, in which modules can be: comma-separated or JSON. Set it if you do not trust all who
    can add modules, because they could let workers send requests to almost any address. Modules are then in these
    networks only, which can include link-local ones. None: modules can have any address except link-local addresses
    and the metadata addresses of clouds; a module that is added over HTTP needs a public address."""

    @field_validator("module")
    @classmethod
    def _check_module(cls, module: dict[str, ModuleSpec]) -> dict[str, ModuleSpec]:
        if wrong := [name for name in module if not is_module_name(name)]:
            raise ValueError(f"module name {wrong[0][:80]!r} may have letters, digits, '_' and '-' only")
        return module

    @field_validator("module_headers", mode="before")
    @classmethod
    def _check_headers(cls, value: Any) -> Any:
        return check_headers(read_json(value))


class ServerSettings(BaseSettings, defer_build=True):
    """Settings of a worker's requirements for its Redis server."""

    allow_eviction: bool = False
    """Whether workers start with a Redis that deletes keys when its memory is full. Such a Redis can forget that a
    call was executed, and the call runs twice."""


class RetrySettings(BaseSettings, defer_build=True):
    """Settings of retries beyond calls that are safe to repeat."""

    retry_undeclared: bool = False
    """Whether a tool that declares no effect is tried once more after it has answered that it failed. It may have had
    its effect, and then has it twice: use this only if your modules expect it. A module can say the same of itself
    with `retries_undeclared`. These failures never become dead letters."""


class ProbeSettings(BaseSettings, defer_build=True):
    """A Unix socket, which only its user reaches, is always there; `toolfleet worker --check` asks at that."""

    probe_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """The port of `GET /livez` and `GET /readyz`. None: no port, because several processes can share a machine."""
    probe_address: str = "127.0.0.1"
    """The address of `probe_port`. Kubernetes probes from outside and needs 0.0.0.0; all who reach the address can
    see that the process is alive."""


class LocalSettings(BaseSettings, defer_build=True):
    """Settings of the tools that a worker imports and runs itself.

    An agent imports none: it reads the workers' manifests.
    """

    local_tools: str | None = None
    """`package.module:name` of your own functions that run in the workers, as tools of the module `local`."""
    local_tools_required: bool = False
    """Whether a worker stops if it cannot import all `local_tools`. Otherwise it serves those that it can import, and
    reports the others."""
    local_threads: int = Field(default=32, ge=1, le=1000)
    """How many functions of `local_tools` that are not async run at once in a worker, each in a thread. Further calls
    wait, within their time limit."""


class ArtifactSettings(BaseSettings, defer_build=True):
    """Settings of artifacts: large results that are kept in a store, and of which a model sees a preview."""

    artifact_store: str | None = None
    """The folder, as an absolute path or a `file://` URL, or the bucket, such as `s3://bucket/fleet`, that keeps large results for
    a day. Agents, workers and gateways have the same one. Two fleets that share it need different values of
    `TOOLFLEET_KEY_PREFIX`. Credentials and options are in the variables of the store's own tools, such as
    `AWS_ACCESS_KEY_ID`. None: models see results whole."""
    artifact_from_bytes: Annotated[int, Field(ge=4_096)] = 32 * 2**10
    """From which size a result is kept as an artifact: a model reads some 8,000 tokens of it otherwise."""
    artifact_bytes_per_user: Count = 2**30
    """Bytes of artifacts that are kept for a user. Further results are not kept, and models see them whole."""

    @field_validator("artifact_store")
    @classmethod
    def _check_store(cls, place: str | None) -> str | None:
        if place is None:
            return None
        from toolfleet_registry.artifact_store import check_store  # hardly any process has one

        return check_store(place)


LONGEST_PROGRAM_SECONDS = 30 * 86_400
"""The longest time until a program ends: its calls, their keys and their results are kept as long."""

ProgramLimit = Literal["calls", "state_bytes", "source_bytes", "waiting", "seconds"]


class ProgramLimits(BaseModel):
    """`[programs]`: the bounds of programs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: Count = 100
    """Calls of a program."""
    state_bytes: Count = 2 * 2**20
    """Bytes that a program keeps while it waits."""
    source_bytes: Count = 64 * 2**10
    """Bytes of its source."""
    waiting: Count = 100
    """Programs of a user that have not ended."""
    seconds: Annotated[int, Field(gt=0, le=LONGEST_PROGRAM_SECONDS)] = 7 * 86_400
    """Seconds until it has timed out."""


class ProgramSettings(BaseSettings, defer_build=True):
    """Settings of programs: Python that a model has written, and that calls tools."""

    programs: Annotated[ProgramLimits | None, NoDecode, BeforeValidator(read_switched)] = None
    """Whether models can run programs that call their tools, with the tool `programs.run`: `true`, or JSON or a table with other
    bounds than these: `calls` (100) of a program, `state_bytes` (2 MiB) that it keeps while it waits, `source_bytes` (64 KiB),
    `waiting` (100) programs of a user that have not ended, `seconds` (7 days, at most 30) until it has timed out. Set it for
    agents, gateways, workers and beat; at least one worker needs the extra `code`. Needs `TOOLFLEET_SIGNING_KEY`. None: no
    programs."""

    @model_validator(mode="after")
    def _check_programs_are_signed(self) -> Self:
        if self.programs and getattr(self, "signing_key", None) is None:
            raise ValueError(
                "TOOLFLEET_PROGRAMS needs TOOLFLEET_SIGNING_KEY, or anyone who reaches Redis could change what a "
                "program does"
            )
        return self

    def program_limit(self, name: ProgramLimit) -> int:
        """Return a bound of programs."""
        limit: int = getattr(self.programs or ProgramLimits(), name)
        return limit


class Settings(
    OverloadSettings,
    RetrySettings,
    SigningSettings,
    ServerSettings,
    ModuleSettings,
    JobSettings,
    WebhookSettings,
    LocalSettings,
    HostSettings,
    AgentSettings,
    ApprovalSettings,
    ArtifactSettings,
    ProgramSettings,
    GatewaySettings,
    ProbeSettings,
    MetricsSettings,
    TraceSettings,
    BaseSettings,
):
    """The fleet's settings; `load_settings` reads them and says clearly what is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        env_parse_none_str=NULL,
        hide_input_in_errors=True,
        ser_json_inf_nan="strings",  # `inf`, in a run file or a child's environment
        defer_build=DEFERS_BUILD,  # as in its parts: once for the whole, when settings are read
    )

    _reads_run_file: ClassVar[bool] = True

    # URLs may hold passwords: they are in no repr, which logs and tracebacks show.
    redis_url: str | None = Field(default=None, repr=False)
    """The Redis of the fleet: manifests, results and, unless `broker_url` is set, the queues. None: the one of the
    local fleet."""
    broker_url: str | None = Field(default=None, repr=False)
    """The broker, if it is not `redis_url`: another Redis, or RabbitMQ."""
    sentinel_master: str | None = None
    """The name of the master that the sentinels of a `sentinel://` URL watch."""
    key_prefix: str = ""
    """A prefix of every key and channel in Redis: several fleets can share a server, and an ACL can restrict a user
    to one of them."""
    module_services: Mapped[str, str] = Field(default={}, repr=False)
    """JSON: module name -> base URL. Workers and beat need it; agents learn it from them."""
    slow_modules: Names[str] = frozenset({"myfitnesspal", "garmin", "renpho_biometrics", "claude_code", "deployer"})
    """Modules of the `slow` lane. The default names the modules of Toolfleet's first application that wait for
    services, builds or deployments."""
    default_timeout: Seconds = 30
    """The time limit of a call in seconds: longer than nearly every tool takes, and shorter than a person waits."""
    tool_execution_timeout: Seconds = 120
    """The time limit of a call in a slow module, in seconds."""
    module_timeouts: Mapped[str, Seconds] = {}
    """JSON: module name -> time limit in seconds; takes precedence over the two limits above."""
    max_timeout: Seconds = 3600
    """The longest time limit of a call in seconds, whatever a manifest asks for."""
    default_guest_modules: Names[str] = frozenset({"research", "file_manager", "code_executor", "knowledge"})
    """The modules that guests can use who have no list of their own. The default names the modules of Toolfleet's
    first application that hold no private data."""
    context_modules: Names[str] = frozenset({"scheduler", "location"})
    """Modules that are told the platform and the channel of a conversation, so that they can send messages there;
    they are also told what an agent knows of it, in tools that take a context (tag tools of a folder)."""
    refresh_interval_seconds: Seconds = 300
    """How often all manifests are read. After three missed readings the tools of a module are marked as stale; they
    are kept for an hour, or for three readings if that is longer."""
    discovery_timeout_seconds: float = Field(default=10, gt=0)
    """The time limit for reading one module's manifest, from connecting to its last byte, so that a slow module does
    not delay the others. It also limits the import of a worker's functions and of each file of a tool folder."""
    max_reply_bytes: int = Field(default=8 * 2**20, gt=0)
    """The largest reply of a module. Replies pass through Redis, which all calls share."""
    visibility_timeout: Seconds | None = None
    """Seconds after which the calls of a dead worker go to other workers; use one value for the whole fleet. None:
    60. RabbitMQ has no such leases."""
    lane: Literal["fast", "slow", "all"] = "all"
    """Which modules a worker serves: the slow ones, the others, or all."""
    drain_seconds: float = Field(default=140, gt=0)
    """How long a stopping worker lets running calls finish: the hard limit of the slow lane, and a margin."""
    result_ttl_seconds: Seconds = 6 * 3600
    """How long a result can be fetched, and how long a caller's idempotency key is remembered."""
    dead_letters_kept: Count = 10_000
    """How many dead letters of each kind are kept for an operator: calls with an unknown end; wake-ups that were not
    accepted, of 100 MB together at most; and events of the registry that were not accepted, also of 100 MB. The
    oldest are removed first."""
    registry_url: str | None = Field(default=None, repr=False)
    """Where the registry stores the decisions of operators: a Redis URL or a SQLAlchemy URL
    (`postgresql+pg8000://…`), the same for all processes. None: in the fleet's Redis."""
    coerce_numbers_modules: Names[str] = frozenset()
    """Modules that accept numbers as strings: the argument "5" becomes 5. In other modules that is an error."""
    gate_fails_closed: bool = False
    """Whether a call of a tool that requires a gate is blocked if the gate fails, is late, or is not configured."""
    audit_kept: Count = 50_000
    """How many lines of the audit are kept in Redis, each of about half a kB. The oldest are removed first."""
    call_contents: Literal["off", "failures", "all"] = "off"
    """The calls whose arguments and results are kept for an hour, at most 16 KiB of each, for admins and for the
    call's user: `off`, `failures` or `all`. `toolfleet up` uses `all`. Use one value for agents and workers."""
    log_format: Literal["console", "json"] = "console"
    """The format of the logs of Toolfleet's commands: `console` for people, `json` for one JSON object a line."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level of the lines that Toolfleet's commands log."""

    @property
    def broker(self) -> str | None:
        """The broker's URL: Redis, if none is set."""
        return self.broker_url or self.redis_url

    @property
    def has_redis_broker(self) -> bool:
        """Whether the broker is a Redis, at which calls travel by our own transport; else it is RabbitMQ."""
        return (broker := self.broker) is None or is_redis_url(broker)

    @property
    def lease_seconds(self) -> float:
        """The visibility timeout that holds. Workers renew their leases while calls run."""
        return self.visibility_timeout or (_LEASE_SECONDS if self.has_redis_broker else _RABBITMQ_LEASE_SECONDS)

    @property
    def modules(self) -> frozenset[str]:
        """The names of all modules: those that have an address, and those that run in the workers."""
        own = {
            LOCAL: self.local_tools,
            SCHEDULER: self.scheduler,
            ARTIFACTS: self.artifact_store,
            PROGRAMS: self.programs,
        }
        return frozenset([*self.module_services, *(name for name, is_on in own.items() if is_on)])

    @property
    def manifest_ttl_seconds(self) -> float:
        """How long a manifest is kept after the last reading of it: an hour is a long fault, and a missed reading loses no tool."""
        return max(_MANIFEST_TTL_SECONDS, self.manifest_stale_seconds)

    @property
    def manifest_stale_seconds(self) -> float:
        """After how long without a good manifest of a module its tools are marked as stale: three missed readings."""
        return 3 * self.refresh_interval_seconds

    @property
    def open_modules(self) -> frozenset[str]:
        """The modules that all callers reach: with these tools they have what is their own."""
        return frozenset() if self.artifact_store is None else frozenset({ARTIFACTS})

    @property
    def worker_modules(self) -> frozenset[str]:
        """The modules that are parts of the workers: they have neither an address nor a manifest in Redis."""
        return frozenset({SCHEDULER, PROGRAMS}) | self.open_modules

    @property
    def keys(self) -> Keys:
        """The names of everything in Redis."""
        return Keys(self.key_prefix)

    def redis_client(self, *, timeout_seconds: float = 5) -> "Redis":
        """Return a client of the fleet's Redis, as `async_client` does. Raises `SettingsError`, also if none is set."""
        from toolfleet_registry.redis.servers import async_client  # to read settings needs no redis-py

        return async_client(fleet_url(self.redis_url), master=self.sentinel_master, timeout_seconds=timeout_seconds)

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, given: dict[str, Any]) -> dict[str, Any]:
        return setting_sources.drop_removed(given)

    @field_validator("module_services")
    @classmethod
    def _check_services(cls, services: dict[str, str]) -> dict[str, str]:
        for name, url in services.items():
            if not is_module_name(name):
                raise ValueError(f"module name {name!r} may have letters, digits, '_' and '-' only")
            if name in {ARTIFACTS, PROGRAMS}:
                raise ValueError(f"{name!r} is the name of the fleet's own tools: another module needs another name")
            if not is_http_url(url):
                raise ValueError(f"module {name!r} needs an http:// or https:// URL with a host")
        return {name: url.rstrip("/") for name, url in services.items()}

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: str | None) -> str | None:
        return None if url is None else check_redis_url(url)

    @field_validator("broker_url")
    @classmethod
    def _check_broker_url(cls, url: str | None) -> str | None:
        return None if url is None else check_broker_url(url)

    @field_validator("key_prefix")
    @classmethod
    def _check_key_prefix(cls, prefix: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_:.-]*", prefix):  # others mean something in Redis's patterns
            raise ValueError("may have letters, digits, '_', '-', ':' and '.' only")
        return prefix

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.has_redis_broker and self.lease_seconds < _SHORTEST_LEASE_SECONDS:
            raise ValueError(
                f"TOOLFLEET_VISIBILITY_TIMEOUT ({self.lease_seconds}) must be at least {_SHORTEST_LEASE_SECONDS} s, "
                "or a running call is delivered again before its worker has renewed its lease"
            )
        return self

    @model_validator(mode="after")
    def _check_sentinel(self) -> Self:
        for name in ("redis_url", "broker_url"):
            if is_sentinel_url(getattr(self, name) or "") and not self.sentinel_master:
                raise ValueError(
                    f"TOOLFLEET_SENTINEL_MASTER must be set: the name of the master that the sentinels of "
                    f"TOOLFLEET_{name.upper()} watch"
                )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment, `toolfleet.toml`, run file."""
        del dotenv_settings, file_secret_settings
        sources: list[PydanticBaseSettingsSource] = [init_settings, _SetVariables(env_settings)]
        if os.environ.get(setting_sources.ENVIRONMENT_ONLY):
            return tuple(sources)
        if (toml := setting_sources.find_toml(Path.cwd())) is not None:
            sources.append(TomlConfigSettingsSource(settings_cls, toml))
        if cls._reads_run_file and (run_file := find_run_file(Path.cwd())) is not None:
            sources.append(InitSettingsSource(settings_cls, run_file.settings))
        return tuple(sources)


# Made where they are read: pydantic collects all fields again for each of them.


@functools.cache
def _environment_settings() -> type[Settings]:
    class EnvironmentSettings(Settings):
        """The same, for a process that reads no file."""

        @classmethod
        def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[PydanticBaseSettingsSource, ...]:
            """Arguments, environment."""
            return sources["init_settings"], _SetVariables(sources["env_settings"])

    return EnvironmentSettings


@functools.cache
def _declared_settings() -> type[Settings]:
    class DeclaredSettings(Settings):
        """The same, for a process that asks what people have set, and not what a running `up` has decided."""

        _reads_run_file = False

    return DeclaredSettings


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the arguments, the environment, `toolfleet.toml` and the run file. Warns of misspelt variables.

    Args:
        overrides: Settings that take precedence over all sources.

    Returns:
        The settings.

    Raises:
        SettingsError: A setting is wrong; the message has one sentence for each of them.

    """
    return _read(Settings, overrides)


def load_environment() -> Settings:
    """Read them from the environment only. Raises `SettingsError` as `load_settings` does."""
    return _read(_environment_settings(), {})


def load_declared() -> Settings:
    """Read them from the environment and `toolfleet.toml`, and no run file. Raises `SettingsError` as `load_settings` does."""
    return _read(_declared_settings(), {})


def _read(kind: type[Settings], overrides: dict[str, Any]) -> Settings:
    setting_sources.warn_of_misspelt(Settings.model_fields)
    try:
        return kind(**overrides)
    except ValidationError as exc:
        sentences = [_sentence_of(error, Settings.model_fields, overrides) for error in exc.errors(include_url=False)]
        raise SettingsError(" ".join(sentences)) from exc
    except (ValueError, OSError) as exc:  # a broken TOML file, or one of another user
        raise SettingsError(f"{setting_sources.TOML_NAME}: {exc}.") from exc


def _sentence_of(error: Any, fields: Mapping[str, FieldInfo], overrides: Mapping[str, Any]) -> str:
    """Return a sentence for one of pydantic's errors in a setting; `overrides` were given as arguments.

    Shows no secret.
    """
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return f"{reason}."
    name, *inner = (str(part) for part in error["loc"])
    shown = _place_of(error["loc"], overrides)
    if error["type"] == "extra_forbidden" and not inner:
        like = setting_sources.likeliest(name, fields)
        return f"{shown}: there is no such setting{'.' if like is None else f'; did you mean {like}?'}"
    if place := ".".join(part for part in inner if part not in _HOST_KINDS):
        shown = f"{shown}, at {place}"
    if error["type"] == "extra_forbidden":
        return f"{shown}: there is no such field."
    # Our own words say enough; and a URL, or a table, may hold a password that must not be shown.
    if error["type"] == "value_error" or inner or not fields[name].repr:
        return f"{shown}: {reason}."
    return f"{shown}: {reason}, not {error['input']!r}."


def _place_of(path: Sequence[str | int], overrides: Mapping[str, Any]) -> str:
    """Return the name of a wrong setting as it was written, and the line of the mistake in it."""
    name = str(path[0])
    if name not in overrides and setting_sources.origin_of(name, start=Path.cwd()).source == "file":
        return f"{setting_sources.setting_place(path, start=Path.cwd())}: {name}"
    return PREFIX + name.upper()
