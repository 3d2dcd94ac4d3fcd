"""Describes the hosts of `toolfleet.toml`: what each serves as a module, with which secrets, and the fence around its processes."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from toolfleet_registry.config.setting_values import Count, Seconds

NAME_FORM = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
"""What a secret can be named: as an environment variable is."""

MOST_REPLICAS = 64
"""Processes of one host on a machine: each has its own environment, and tools in processes of their own."""

SecretName = Annotated[str, Field(pattern=f"^{NAME_FORM}$")]


class SecretSource(BaseModel):
    """One `[secrets.NAME]`: where the value is read from when a host starts; without any, from the variable of this name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    variable: str | None = None
    """The environment variable that holds it."""
    file: Path | None = None
    """The file whose content it is, without a line's end; a relative one is beside the file that names it."""
    command: tuple[str, ...] = ()
    """The program, with its arguments, that prints it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum((self.variable is not None, self.file is not None, bool(self.command))) != 1:
            raise ValueError("a secret has one source: variable, file or command")
        return self


class HostBase(BaseModel):
    """What every `[hosts.NAME]` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    description: str = ""
    """What the module is for."""
    secrets: tuple[SecretName, ...] = ()
    """The secrets that it may use, by name."""
    replicas: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    """How many processes of it `toolfleet up` runs: calls go to the one with less to do, and one may end while others go on."""


class FencedSpec(HostBase):
    """A host whose tools run in processes of their own."""

    isolation: Literal["none", "bwrap"] = "none"
    """`bwrap`: its process has no network and cannot write outside of its own folder; needs bubblewrap."""
    memory_mb: Count | None = 4096
    """MiB of addresses that a process may have; no limit without."""
    cpu_seconds: Count | None = None
    """Seconds of CPU time that a process may use in its life."""
    open_files: Count | None = 1024
    """Files that a process may have open."""
    processes: Count | None = None
    """Processes that its user may have, all together; the kernel does not count root's."""
    variables: tuple[str, ...] = ()
    """Environment variables that its process gets; of all others it sees none."""


class FolderSpec(FencedSpec):
    """A folder of Python files, functions that are named by their dotted paths, or both."""

    folder: Path | None = None
    """The folder; a relative one is beside the file that names it."""
    tools: tuple[str, ...] = ()
    """Functions that are tools, too, such as `acme.tools.read_file`: only those of `trusted_tool_namespaces` are imported."""
    allow_builds: bool = False
    """Whether packages are installed that have no wheel: their own code is run then, outside of the fence."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.folder is None and not self.tools:
            raise ValueError("a tool folder has a folder, tools, or both")
        for tool in self.tools:
            if "." not in tool or not all(part.isidentifier() for part in tool.split(".")):
                raise ValueError(f"{tool[:80]!r} is no dotted path of a function, such as acme.tools.read_file")
        return self


class McpSpec(FencedSpec):
    """An MCP server: a program that speaks over its standard streams, or one that is reached over HTTP."""

    command: tuple[str, ...] = ()
    """The program and its arguments; a relative path is beside the file that names it."""
    url: str | None = None
    """The server's Streamable HTTP endpoint."""
    env: dict[str, str] = {}
    """More variables of the program's; `${NAME}` stands for the secret of this name."""
    directory: Path | None = None
    """The folder that the program runs in; without it, the one that relative paths are beside. With `bwrap` it has one of its own."""
    headers: dict[str, str] = {}
    """Header fields of each request to the server; `${NAME}` as in `env`."""
    scope: Literal["shared", "caller"] = "shared"
    """Whether all callers share the server's sessions, or each user has one for itself."""
    most_sessions: Count = 16
    """Users who may have a session at once, where each has one for itself."""
    idle_seconds: Seconds = 300
    """Seconds after which a user's session ends that is not used."""
    handshake_seconds: Seconds = 30
    """Seconds for the server to start, and to say what it speaks."""
    refresh_seconds: Seconds = 60
    """Seconds between two lists of its tools, where it does not say how long one holds; changes that it tells of are seen at once."""
    stuck_seconds: Seconds = 30
    """Seconds that a program may answer nothing, after a call that did not come back in time, before it is started anew."""
    asks: bool = False
    """Whether a server of an older version may ask whoever called in the middle of a call; each user has a session then, and one call at a time in it."""
    trusted: bool = False
    """Whether its annotations say what repeating a call would do; else every tool counts as `once`."""
    memory_mb: Count | None = None
    """MiB of addresses that a process may have; no limit without: JavaScript's engines reserve more than they use."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has either a command or a url")
        return self


class OpenApiSpec(HostBase):
    """An OpenAPI document, whose operations become tools."""

    document: str
    """The document's file or URL; a relative file is beside the file that names it."""
    base: str | None = None
    """Where the service is; without it, the document's first server."""
    tags: tuple[str, ...] = ()
    """Only operations with one of these tags, if any are named."""
    paths: tuple[str, ...] = ()
    """Only operations whose path matches one of these patterns (`/owls/*`), if any are named."""
    auth: dict[str, str] = {}
    """The document's security schemes by name, each with what is sent for it; `${NAME}` stands for the secret of this name."""
    refresh_seconds: Seconds = 300
    """The pause between two looks at a document that has a URL; a file is read again when it changes."""
    checks_results: bool = True
    """Whether results are held against the document: of a service that does not keep to it, nothing else would come through."""


def _kind_of(value: Any) -> str | None:
    """Which of the specs a table is: by the one field that only that has."""
    if isinstance(value, HostBase):
        return next(tag for tag, kind in _KINDS.items() if isinstance(value, kind))
    fields = value if isinstance(value, dict) else {}
    found = {tag for field, tag in _FIELDS.items() if field in fields}
    return found.pop() if len(found) == 1 else None


_KINDS = {"folder": FolderSpec, "mcp": McpSpec, "openapi": OpenApiSpec}
_FIELDS = {"folder": "folder", "tools": "folder", "command": "mcp", "url": "mcp", "document": "openapi"}

HostSpec = Annotated[
    Annotated[FolderSpec, Tag("folder")] | Annotated[McpSpec, Tag("mcp")] | Annotated[OpenApiSpec, Tag("openapi")],
    Discriminator(
        _kind_of,
        custom_error_type="host",
        custom_error_message="a host has one of: folder, tools, command, url, document",
    ),
]
"""One `[hosts.NAME]`."""
