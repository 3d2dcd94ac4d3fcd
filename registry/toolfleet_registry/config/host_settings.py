"""Declares the settings of hosts: what each serves as a module, with which secrets, and the fence around its processes.

`[hosts]` and `[secrets]` of `toolfleet.toml` are described here, as a part of `Settings`.
"""

import os
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_settings import BaseSettings

from toolfleet_registry.config.setting_values import Count, MappedModels, Names, Ordered, read_json
from toolfleet_registry.contracts.message import DEFERS_BUILD, Seconds
from toolfleet_registry.contracts.names import RESERVED, is_module_name
from toolfleet_registry.contracts.tool_definition import ToolLines

NAME_FORM = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
"""What a secret can be named: as an environment variable is."""

MOST_REPLICAS = 64
"""Processes of one host on a machine: each has its own environment, and tools in processes of their own."""

SecretName = Annotated[str, Field(pattern=f"^{NAME_FORM}$")]


class SecretSource(BaseModel):
    """One `[secrets.NAME]`: where the value is read from when a host starts; without any, from the variable of this name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    variable: str | None = None
    """The environment variable that holds it."""
    file: Path | None = None
    """The file whose content it is, without a line's end; a relative path starts at the folder of the file that names it."""
    command: tuple[str, ...] = ()
    """The program, with its arguments, that prints it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum((self.variable is not None, self.file is not None, bool(self.command))) != 1:
            raise ValueError("a secret has one source: variable, file or command")
        return self


# Folders that are no program's own, also if an argument names a file there.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"}
_WIDE = {Path(each) for each in ("/", "/home", "/mnt", "/opt", "/srv", "/var", "/var/lib")}


def _wide() -> set[Path]:
    """Return folders of many programs. Not kept: the folder for temporary files is fixed for a process once it was asked for."""
    import tempfile  # of those who start hosts

    return {*_WIDE, Path.home(), Path(tempfile.gettempdir())}


class Places(NamedTuple):
    """The folders that a host's programs work in, and the files that they read."""

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()


class HostBase(ToolLines):
    """The fields that every `[hosts.NAME]` may have."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    description: str = ""
    """What the module is for."""
    secrets: tuple[SecretName, ...] = ()
    """Name of a secret -> where hosts read it: `[secrets.GITHUB_TOKEN]` with `variable`, `file` or `command`. A
    secret without an entry is read from the environment variable of its name."""
    replicas: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    """How many processes of it `toolfleet up` runs: calls go to the one with less to do, and one may end while others go on."""


class FencedSpec(HostBase):
    """A host that runs its tools in processes of their own."""

    isolation: Literal["none", "bwrap"] = "none"
    """With `bwrap` its process has no network and cannot write outside its own folder; needs bubblewrap."""
    memory_mb: Count | None = 4096
    """MiB of address space of a process."""
    cpu_seconds: Count | None = None
    """Seconds of CPU time that a process may use in its life."""
    open_files: Count | None = 1024
    """Files that a process may have open."""
    processes: Count | None = None
    """Processes of its user, all together; the kernel does not count root's."""
    nice: int = Field(default=0, ge=0, le=19)
    """The priority of its processes, as the command `nice` has it: 0 is the usual one, 19 the lowest."""
    variables: tuple[str, ...] = ()
    """Environment variables of the host that its process gets; it sees no others."""

    def places(self, beside: Path) -> Places | None:
        """Return the folders of its programs, relative paths start at `beside`; None for a host without programs."""
        raise NotImplementedError


class FolderSpec(FencedSpec):
    """A folder of Python files, functions that are named by their dotted paths, or both."""

    folder: Path | None = None
    """The folder; a relative path starts at the folder of the file that names it."""
    tools: tuple[str, ...] = ()
    """Functions that are tools, too, such as `acme.tools.read_file`: only those of `trusted_tool_namespaces` are imported."""
    allow_builds: bool = False
    """Whether packages are installed that have no wheel: their own code is run then, outside of the fence."""
    exception_text: bool = False
    """Whether a model reads the text of an exception that a tool raises, without the host's secrets; else its kind only, as the text may hold paths and data."""

    def places(self, beside: Path) -> Places:
        """Return its folder, and the folders where Python looks for named functions."""
        folder = () if self.folder is None else ((beside / self.folder).resolve(),)
        return Places(writable=folder, readable=(beside.resolve(),) if self.tools else ())

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.folder is None and not self.tools:
            raise ValueError("a tool folder has a folder, tools, or both")
        for tool in self.tools:
            if "." not in tool or not all(part.isidentifier() for part in tool.split(".")):
                raise ValueError(f"{tool[:80]!r} is no dotted path of a function, such as acme.tools.read_file")
        return self


class OAuthSpec(BaseModel):
    """The OAuth login of a host at an MCP server: one `[hosts.NAME.oauth]`, empty if a person logs in and the defaults fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`authorization_code`: a person logs in once, by `toolfleet host mcp NAME --login`; `client_credentials`: the host asks for tokens itself."""
    issuer: str | None = None
    """The authorization server of the client; required with a secret or a key, which are sent to no other."""
    client_id: str | None = None
    """The registered client; without it the host registers itself, if the server allows that."""
    client_secret: str | None = Field(default=None, repr=False)
    """`${NAME}`: the client's secret."""
    client_auth: Literal["basic", "post"] = "basic"
    """How the secret is sent: in a header (`client_secret_basic`), or in the body (`client_secret_post`)."""
    private_key: str | None = Field(default=None, repr=False)
    """`${NAME}`: the client's key in PEM (`private_key_jwt`), in place of a secret."""
    client_metadata_url: str | None = None
    """The `https` URL of a document about the client, for servers that accept it as an id."""
    scopes: tuple[str, ...] = ()
    """The scopes to ask for, in place of all that the server lists; what it demands is added."""
    redirect_port: int = Field(default=0, ge=0, le=65_535)
    """The port on `127.0.0.1` where a login comes back, if the client is registered with one; 0 is a free one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if wrong := next((why for is_so, why in self._faults() if is_so), None):
            raise ValueError(wrong)
        return self

    def _faults(self) -> Iterator[tuple[bool, str]]:
        """Yield each check's outcome, and the sentence for it."""
        has_secret, has_key, has_id = bool(self.client_secret), bool(self.private_key), bool(self.client_id)
        for field, text in (("client_secret", self.client_secret), ("private_key", self.private_key)):
            yield text is not None and not re.fullmatch(rf"\$\{{{NAME_FORM}\}}", text), f"{field} is written ${{NAME}}"
        yield has_secret and has_key, "a client has either client_secret or private_key"
        yield (has_secret or has_key) and not has_id, "client_secret and private_key need a client_id"
        yield (
            (has_secret or has_key) and not self.issuer,
            "client_secret and private_key need the issuer that they are for",
        )
        yield has_id and self.client_metadata_url is not None, "a client has either client_id or client_metadata_url"
        if self.grant == "client_credentials":
            yield (
                not has_secret and not has_key,
                "client_credentials needs a client_id with client_secret or private_key",
            )
            yield bool(self.redirect_port), "client_credentials needs no login: leave redirect_port out"
        yield has_key and self.grant == "authorization_code", 'private_key is for grant = "client_credentials"'
        yield self.issuer is not None and not is_safe_url(self.issuer), "issuer is no https URL"
        url = self.client_metadata_url
        yield (
            url is not None and not re.fullmatch(r"https://[^/?#\s@]+/[^?#\s]+", url),
            "client_metadata_url is no https URL with a path",
        )
        yield any(not re.fullmatch(r"[\x21\x23-\x5B\x5D-\x7E]+", each) for each in self.scopes), "a scope is one word"


def is_safe_url(url: str) -> bool:
    """Return whether credentials can be sent there safely: over https, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # its host is a name, or it is no URL
        return bool(re.match(r"https://[^/?#\s@]+(?=[/?#]|$)", url))
    return parts.scheme in {"http", "https"} if is_here else parts.scheme == "https" and bool(host)


class McpSpec(FencedSpec):
    """An MCP server: a program that speaks over its standard streams, or one that is reached over HTTP."""

    command: tuple[str, ...] = ()
    """The program and its arguments; a relative path starts at the file that names it."""
    url: str | None = None
    """The server's Streamable HTTP endpoint."""
    env: dict[str, str] = Field(default={})
    """Variables of the program; `${NAME}` is the secret of this name."""
    directory: Path | None = None
    """The folder that the program runs in, by default the one of the file that names it. With `bwrap` it has a folder of its own."""
    headers: dict[str, str] = Field(default={})
    """Header fields of each request to the server; `${NAME}` as in `env`."""
    oauth: OAuthSpec | None = None
    """How the host gets tokens for a server that wants OAuth: a table `[hosts.NAME.oauth]`."""
    scope: Literal["shared", "caller"] = "shared"
    """`caller` gives each user a session; otherwise all callers share one."""
    most_sessions: Count = 16
    """Users who may have a session at once, with `scope = "caller"`."""
    idle_seconds: Seconds = 300
    """Seconds after which an unused session of a user ends."""
    handshake_seconds: Seconds = 30
    """Seconds for the server to start and to finish the handshake."""
    refresh_seconds: Seconds = 60
    """Seconds between two reads of its tools, if it does not say how long a list holds; changes that it announces are read at once."""
    stuck_seconds: Seconds = 30
    """Seconds without any answer, after a call that was late, after which a program is restarted."""
    asks: bool = False
    """Whether a server before 2026-07-28 may ask the caller during a call; each user then has a session, with one call at a time."""
    trusted: bool = False
    """Whether its annotations decide what a repeat would do; otherwise every tool counts as `once`."""
    pin: bool = False
    """Whether a change is withheld until an operator approves it; otherwise it is served, and shown until it is accepted."""
    memory_mb: Count | None = None
    """MiB of address space of a process; JavaScript engines reserve more than they use."""

    def places(self, beside: Path) -> Places | None:
        """Return its directory, the paths in its arguments and variables, and the installation of its program."""
        if not self.command:
            return None
        is_apart = self.isolation == "bwrap"  # in a folder of its own, where relative paths lead nowhere
        directory = (beside / (self.directory or ".")).resolve()
        found, read = [] if is_apart else [directory], list[Path]()
        for word in (*self.command[1:], *self.env.values()):
            said = Path(word.rpartition("=")[2])
            path = Path(os.path.normpath(directory / said))
            folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112 - a script among the arguments is too long for `is_dir`
            if not os.path.isdir(folder) or (is_apart and not said.is_absolute()):  # noqa: PTH112 - as above
                continue
            is_own = folder == path or not beside.is_relative_to(
                folder
            )  # else it is the fleet's, unless something says otherwise
            if is_own and folder not in _wide() and folder.parts[1] not in _SYSTEM:
                found.append(folder)
            elif os.path.isfile(path):  # noqa: PTH113 - as above
                read.append(path)
        import shutil

        program = shutil.which(self.command[0] if "/" not in self.command[0] else beside / self.command[0])
        for path in () if program is None else {Path(program).absolute(), Path(program).resolve()}:
            whole = path.parents[1] if path.parent.name in {"bin", ".bin", "shims"} else path.parent
            read.append(path.parent if whole in _wide() else whole)
        return Places(writable=tuple(found), readable=tuple(read))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an MCP server has either a command or a url")
        if self.oauth is not None:
            if self.url is None:
                raise ValueError("oauth is for a server that has a url")
            if not is_safe_url(self.url):
                raise ValueError("tokens are sent to no url without https, but on this machine")
            if any(name.lower() == "authorization" for name in self.headers):
                raise ValueError("a server has either oauth or a header Authorization")
        return self


class OpenApiSpec(HostBase):
    """An OpenAPI document. Its operations become tools."""

    document: str
    """The document's file or URL, JSON or YAML; a relative path starts at the file that names it."""
    base: str | None = None
    """Where the service is; by default the document's first server."""
    tags: tuple[str, ...] = ()
    """Only operations with one of these tags, if any are named."""
    paths: tuple[str, ...] = ()
    """Only operations whose path matches one of these patterns (`/owls/*`), if any are named."""
    auth: dict[str, str] = Field(default={})
    """What is sent for each of the document's security schemes; `${NAME}` is the secret of this name."""
    headers: dict[str, str] = Field(default={})
    """Header fields of each request, such as a version; `${NAME}` as in `auth`. They are no arguments."""
    refresh_seconds: Seconds = 300
    """Seconds between two reads of a document that has a URL; a file is read when it changes."""
    checks_results: bool = True
    """Whether results are checked against the document; `false` for a service that does not keep to its own."""
    slashes: tuple[str, ...] = ()
    """Path parameters whose values may contain `/`, each as `TOOL.PARAMETER`, such as `get_content.path`."""


def _kind_of(value: Any) -> str | None:
    """Return the kind of a host's table, by the one field that only this kind has."""
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


ToolSecurity = Literal["off", "warn", "strict"]


class HostSettings(BaseSettings, defer_build=True):
    """Settings of the hosted modules, and of reading and watching tool folders."""

    hosts: MappedModels[str, HostSpec] = {}
    """Module name -> what `toolfleet up` serves as this module, such as `[hosts.owls]` with `folder = "owls"`: a
    folder of Python files, an MCP server (`command` or `url`), or an OpenAPI document (`document`)."""
    secrets: MappedModels[str, SecretSource] = {}
    """Secret's name -> where hosts read it: `[secrets.GITHUB_TOKEN]` with `variable`, `file` or `command`. One that is not here is the environment variable of its name."""
    tool_security: ToolSecurity = "warn"
    """Whether files are scanned before they are imported: `warn` logs what is found, `strict` refuses the file."""
    tool_allowed_imports: Names[str] = frozenset()
    """Modules and functions that the scan of `tool_security` allows although it would report them: comma-separated or
    JSON."""
    trusted_tool_namespaces: Names[str] = frozenset()
    """Packages from which hosts can take functions as tools by a dotted path, such as `acme.tools`: comma-separated
    or JSON."""
    tool_lazy: bool = False
    """Whether a file is imported only with the first call of one of its tools: for folders of thousands of tools."""
    tool_processes: Count = os.cpu_count() or 1
    """How many calls of tools with `runs_in="process"` can run at once in a host."""

    host_replies_in_redis: bool = False
    """Whether announced hosts keep the outcome of calls in the fleet's Redis for a day, where the other processes of
    their module find it. Otherwise each process keeps its own. Use one value for all hosts of a module."""

    host_data_folder: Path = Path(".toolfleet")
    """The folder in which hosts keep the tokens of MCP servers (`oauth`, each in a file that only its user can read)
    and the packages that tool files ask for (`environments`). A relative path starts at the folder of
    `toolfleet.toml`. The hosts of one module on one machine share it."""
    tool_install_options: Ordered[str] = ()
    """More options for `uv pip install`, such as `--index-url` with its value: separated by blanks, or JSON."""

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: dict[str, HostSpec]) -> dict[str, HostSpec]:
        for name in hosts:
            if not is_module_name(name) or name in RESERVED:
                raise ValueError(
                    f"a host cannot be named {name!r}: letters, digits, '_' and '-', and none of the fleet's own"
                )
        return hosts

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, SecretSource]) -> dict[str, SecretSource]:
        for name in secrets:
            if not re.fullmatch(NAME_FORM, name):
                raise ValueError(f"a secret cannot be named {name[:80]!r}: name it as an environment variable")
        return secrets

    @field_validator("tool_install_options", mode="before")
    @classmethod
    def _read_options(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return read_json(value) if value.lstrip().startswith("[") else value.split()
