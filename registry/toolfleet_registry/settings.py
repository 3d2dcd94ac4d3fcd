"""Declares every setting of the fleet, its default and the reason for it.

Read from, first wins: arguments, the environment (`TOOLFLEET_…`), the nearest `toolfleet.toml`, the run file of a
running `toolfleet up`. A wrong one is one sentence at start, never a surprise later.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
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
from toolfleet_registry.config.setting_values import Count, Networks, Seconds, read_json
from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.config.webhook_settings import ApprovalSettings, JobSettings, WebhookSettings
from toolfleet_registry.contracts import CostClass
from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.headers import check_headers
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.urls import check_broker_url, check_redis_url, is_http_url, is_redis_url, is_sentinel_url

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

Names = Annotated[frozenset[str], NoDecode]


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
    """Calls in flight in one worker process, its slots; up to a quarter more while one module holds half of them, for the others. A
    waiting call costs about 30 kB."""
    backlog_limit: Count = 10_000
    """Calls that wait in a module's queue before further ones are told `busy`: more would hardly be answered in time."""
    module_backlogs: Annotated[dict[str, Count], NoDecode] = {}
    """Module name -> that limit, for single modules."""
    max_arguments_bytes: Annotated[int, Field(gt=0)] = 2**20
    """Of a call's arguments, as the JSON that is published: what takes an agent or a worker longer than 20 ms to read, check and write
    delays all others. One value for agents and workers."""
    unserved_seconds: Annotated[float, Field(ge=0)] = 5
    """How long a module may have been without a worker before its calls are told `busy`: a worker that was killed is back by then,
    most often. `inf`: calls always wait for a worker."""
    scale_from_zero_lanes: Annotated[frozenset[Literal["fast", "slow"]], NoDecode] = frozenset()
    """Lanes whose workers are started when calls wait for them: these calls always wait."""
    module_concurrency: Annotated[dict[str, Count], NoDecode] = {}
    """Module name -> calls that may run there at once, over all workers; without an entry as many as there are slots."""
    calls_per_caller: Count | None = None
    """A caller's published, unfinished calls in a lane; None: twice the slots of its workers, so that none stays idle."""
    backlog_bytes: Count = 256 * 2**20
    """Bytes of calls that wait in a module's queue, roughly: a few hundred large ones fill a Redis as ten thousand small ones do not.

    A call that is smaller than its part of them, which is 26 kB with 10,000 calls, is bounded by their number only.
    """
    stored_bytes_per_caller: Count = 256 * 2**20
    """Bytes of a user's results that nobody has had yet, or had just now, and of their calls that wait for approvals, before
    further calls are told `busy`. A call that waits counts with 16 KiB at least."""
    cost_budgets: Annotated[dict[CostClass, Count], NoDecode] = {}
    """Cost class (free, cheap, expensive) -> calls a user may make a UTC day; one value for agents and workers."""

    @field_validator("module_backlogs", "module_concurrency", "cost_budgets", mode="before")
    @classmethod
    def _read_bounds(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value


class MetricsSettings(BaseSettings, defer_build=True):
    """Settings of metrics.

    Without a port nothing is counted, except in a gateway, which serves `GET /metrics` to operators.
    """

    metrics_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """Answer `GET /metrics` for Prometheus on this port, in each worker, gateway and host, or on the first of the 15 after it that is
    free: processes that share a machine share its settings. None: on none."""
    metrics_address: str = "127.0.0.1"
    """Of that port. Prometheus on another machine needs 0.0.0.0; whoever reaches it reads the names of modules and tools."""


class TraceSettings(BaseSettings, defer_build=True):
    """Settings of traces. OpenTelemetry's own variables say where traces go, and how many are kept."""

    traces: bool | None = None
    """Whether this process writes traces. None: where it has a provider of OpenTelemetry, or OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    trace_contents: bool = False
    """Whether traces have arguments and results as well, without those that are sensitive or may be personal data."""


class ModuleSpec(ToolLines):
    """One `[module.NAME]`, of a module of any kind."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ModuleSettings(BaseSettings, defer_build=True):
    """Settings of modules' networks, and of the headers that they are sent with each request."""

    module: Annotated[dict[str, ModuleSpec], NoDecode] = {}
    """Module name -> what is said of its tools: `[module.owls]` with `effects = {count = "read"}` for tools that do not say what a repeat
    would do, `permission = "admin"`, which raises what they ask for, and `approval = ["pay"]`, which has people approve calls (`approvers`: who, in
    the place of admins). For workers and beat, the same for all of them: they keep it with
    the module's manifest, where agents read it."""
    module_headers: Annotated[dict[str, dict[str, SecretStr]], NoDecode] = Field(default={}, repr=False)
    """JSON: module name -> header -> value, sent with each request to the module, such as `Authorization` with a token. For workers: an
    agent asks modules only where there is no fleet. Never logged or shown; read at start."""

    module_networks: Networks = ()
    """CIDRs in which they may be, comma-separated or JSON, as whoever may add one could else have workers ask any address that they
    reach. None: everywhere but at link-local and cloud metadata addresses, of which those count that a CIDR names; and one that is added
    over HTTP at public addresses only."""

    @field_validator("module", mode="before")
    @classmethod
    def _read_module(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @field_validator("module")
    @classmethod
    def _check_module(cls, module: dict[str, ModuleSpec]) -> dict[str, ModuleSpec]:
        if wrong := [name for name in module if not is_module_name(name)]:
            raise ValueError(f"module name {wrong[0][:80]!r} may have letters, digits, '_' and '-' only")
        return module

    @field_validator("module_headers", mode="before")
    @classmethod
    def _check_headers(cls, value: Any) -> Any:
        return check_headers(read_json(value) if isinstance(value, str) else value)


class ServerSettings(BaseSettings, defer_build=True):
    """Settings of a worker's requirements for its Redis server."""

    allow_eviction: bool = False
    """Whether workers start at a Redis that deletes keys when its memory is full: it forgets what was executed, and runs it twice."""


class RetrySettings(BaseSettings, defer_build=True):
    """Settings of retries beyond calls that are safe to repeat."""

    retry_undeclared: bool = False
    """Whether a tool that declares no effect is tried once more after it has answered that it failed. It may have done the thing, and
    then does it twice: for fleets whose modules count on that. A module may say the same of itself: `retries_undeclared`. Such failures make no
    dead letters, as they make none without it."""


class ProbeSettings(BaseSettings, defer_build=True):
    """A Unix socket, which only its user reaches, is always there; `toolfleet worker --check` asks at that."""

    probe_port: Annotated[int, Field(gt=0, lt=2**16)] | None = None
    """Answer `GET /livez` and `GET /readyz` on this port; None, for several processes share a machine: on none."""
    probe_address: str = "127.0.0.1"
    """Of that port. Kubernetes asks from elsewhere and needs 0.0.0.0; whoever reaches it learns that the process lives."""


class LocalSettings(BaseSettings, defer_build=True):
    """Settings of the tools that a worker imports and runs itself.

    An agent imports none: it reads the workers' manifests.
    """

    local_tools: str | None = None
    """`package.module:name` of tools that are functions of our own and run in the workers, as module `local`."""
    local_tools_required: bool = False
    """Whether a worker ends that cannot import all of them. Others serve what there is, and say what is missing."""
    local_threads: int = Field(default=32, ge=1, le=1000)
    """How many of them that are no async functions run at once in a worker, each in a thread: who comes later waits within its call's time."""


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
    """Redis: manifests, results and, unless `broker_url` says otherwise, the queues. None: the local fleet's own."""
    broker_url: str | None = Field(default=None, repr=False)
    """The broker, if it is not that Redis: another one, or RabbitMQ."""
    sentinel_master: str | None = None
    """The name of the master that the sentinels of a `sentinel://` URL watch."""
    key_prefix: str = ""
    """Put before every key and channel in Redis, so that a fleet may share one, and an ACL user be kept to its own."""
    module_services: Annotated[dict[str, str], NoDecode] = Field(default={}, repr=False)
    """JSON: module name -> base URL. For workers and beat; agents learn it from them."""
    slow_modules: Names = frozenset({"myfitnesspal", "garmin", "renpho_biometrics", "claude_code", "deployer"})
    """Modules of the `slow` lane: of those that Toolfleet was first made for, the ones that wait for services, builds or deployments."""
    default_timeout: Seconds = 30
    """A call's limit: longer than nearly every tool, shorter than a person's patience."""
    tool_execution_timeout: Seconds = 120
    """A call's limit in a slow module."""
    module_timeouts: Annotated[dict[str, Seconds], NoDecode] = {}
    """JSON: module name -> limit in seconds, over both of the above."""
    max_timeout: Seconds = 3600
    """No call may run longer, whatever a manifest says."""
    default_guest_modules: Names = frozenset({"research", "file_manager", "code_executor", "knowledge"})
    """What a guest reaches who names no modules: of those that Toolfleet was first made for, the ones without private data."""
    context_modules: Names = frozenset({"scheduler", "location"})
    """Modules that are told on which platform and channel a conversation runs, to send messages back; and what an agent knows of it, in tools that take that (tag tools of a folder)."""
    refresh_interval_seconds: Seconds = 300
    """How often all manifests are read. After three missed readings a module's tools are marked as stale; they are kept for an hour, or
    for three readings if that is longer."""
    discovery_timeout_seconds: float = Field(default=10, gt=0)
    """For one module's manifest in total, so that a trickling module delays nobody; and for the import of a worker's functions, or of
    one file of a tool folder."""
    max_reply_bytes: int = Field(default=8 * 2**20, gt=0)
    """A module's reply; it passes through Redis, which every other call shares."""
    visibility_timeout: Seconds | None = None
    """Seconds after which a dead worker's calls go to others; one value for the whole fleet. None: 60. RabbitMQ has no leases."""
    lane: Literal["fast", "slow", "all"] = "all"
    """Which modules a worker serves: the slow ones, the others, or all."""
    drain_seconds: float = Field(default=140, gt=0)
    """How long a stopping worker lets running calls finish: the slow lane's hard limit, and a margin."""
    result_ttl_seconds: Seconds = 6 * 3600
    """How long a result can be fetched, and a caller's idempotency key is remembered."""
    dead_letters_kept: Count = 10_000
    """What is kept for an operator of each kind: calls with an unknown end; wake-ups that nobody accepted, of 100 MB together at
    most; and such events of the registry, likewise. The oldest go first."""
    registry_url: str | None = Field(default=None, repr=False)
    """Where the registry keeps what operators decide: a Redis or SQLAlchemy URL (`postgresql+pg8000://…`), the same for all. None: the fleet's Redis."""
    coerce_numbers_modules: Names = frozenset()
    """Modules whose number arguments may come as strings: "5" becomes 5. For others that is an error."""
    gate_fails_closed: bool = False
    """Whether each call of a tool that requires a gate is blocked where that fails, is late, or is not there."""
    audit_kept: Count = 50_000
    """Lines of the audit in Redis, of about half a kB; the oldest go first."""
    call_contents: Literal["off", "failures", "all"] = "off"
    """Of which calls the arguments and the result are kept for an hour, at most 16 KiB of each, for admins and for the call's user:
    `off`, `failures` or `all`, which `toolfleet up` takes. One value for agents and workers."""
    log_format: Literal["console", "json"] = "console"
    """How our commands write their logs: for people, or one JSON object a line."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """What our commands log: this and whatever is more serious."""

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
        own = {LOCAL: self.local_tools, SCHEDULER: self.scheduler}
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
    def keys(self) -> Keys:
        """The names of everything in Redis."""
        return Keys(self.key_prefix)

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, given: dict[str, Any]) -> dict[str, Any]:
        return setting_sources.drop_removed(given)

    @field_validator(
        "slow_modules",
        "default_guest_modules",
        "context_modules",
        "coerce_numbers_modules",
        "scale_from_zero_lanes",
        mode="before",
    )
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return read_json(value)
        return [name.strip() for name in value.split(",") if name.strip()]

    @field_validator("module_services", "module_timeouts", mode="before")
    @classmethod
    def _read_mapping(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @field_validator("module_services")
    @classmethod
    def _check_services(cls, services: dict[str, str]) -> dict[str, str]:
        for name, url in services.items():
            if not is_module_name(name):
                raise ValueError(f"module name {name!r} may have letters, digits, '_' and '-' only")
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


class _EnvironmentSettings(Settings):
    """The same, for a process that reads no file."""

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment."""
        return sources["init_settings"], _SetVariables(sources["env_settings"])


class _DeclaredSettings(Settings):
    """The same, for a process that asks what people have set, and not what a running `up` has decided."""

    _reads_run_file = False


def load_settings(**overrides: Any) -> Settings:
    """Read the settings. Raises `SettingsError` with one sentence a wrong setting; warns of misspelt variables."""
    return _read(Settings, overrides)


def load_environment() -> Settings:
    """Read them from the environment only. Raises `SettingsError` as `load_settings` does."""
    return _read(_EnvironmentSettings, {})


def load_declared() -> Settings:
    """Read them from the environment and `toolfleet.toml`, and no run file. Raises `SettingsError` as `load_settings` does."""
    return _read(_DeclaredSettings, {})


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
