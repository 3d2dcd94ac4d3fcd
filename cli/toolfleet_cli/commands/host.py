"""Serves tool folders, OpenAPI documents and MCP servers as modules: `toolfleet host`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from toolfleet_cli.console import need, say
from toolfleet_registry.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolfleet_modules.sdk.module import ServedModule

app = typer.Typer(no_args_is_help=True)

ModuleName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The module's name.")]
Address = Annotated[str, typer.Option(help="Where to listen.")]
Document = Annotated[str, typer.Option(metavar="FILE_OR_URL", help="The OpenAPI document, 3.0 or 3.1.")]
Base = Annotated[
    str | None, typer.Option(metavar="URL", help="Where the service is; without it, the document's first server.")
]
Tags = Annotated[list[str] | None, typer.Option(help="Only operations with this tag. May be given several times.")]
Paths = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Only operations of such a path: `/owls/*`. May be given several times."),
]
Auth = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SCHEME=${SECRET}",
        help="What is sent for a security scheme of the document; in single quotes, so that no shell fills in the secret.",
    ),
]
Refresh = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="The pause between two looks at a document's URL.")
]
Url = Annotated[str | None, typer.Option(help="The server's Streamable HTTP endpoint, in the place of a command.")]
McpConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with `mcpServers`, as other programs have it.")
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=${SECRET}",
        help="A variable of the program's. May be given several times; in single quotes, so that no shell fills in the secret.",
    ),
]
Header = Annotated[
    list[str] | None, typer.Option(metavar="NAME:${SECRET}", help="A header field of each request. As --env.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")]
Announce = Annotated[
    bool,
    typer.Option(
        "--announce/--no-announce", help="Tell the fleet that this host serves the module, if its Redis is known."
    ),
]
AnnounceUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Where workers reach this host, if not at its address and port.")
]


def given(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in facts.items() if value is not None}


@app.command()
def folder(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Its `.py` files; functions with `@tool` are the tools.")
    ],
    *,
    name: ModuleName = None,
    address: Address = "127.0.0.1",
    port: Port = 0,
    announce: Announce = True,
    announce_url: AnnounceUrl = None,
) -> None:
    """Serve a folder of Python files as a module, in the foreground, also while the files change.

    Its name is the folder's, without --name. What `toolfleet.toml` says under `[hosts.NAME]` holds for it. With TOOLFLEET_MODULE_KEY, only calls of the fleet are run.
    """
    need("host")
    from toolfleet_cli.hosting.hosts import folder_host, toml_folder

    settings = load_settings()
    host = folder_host(settings, path, beside=toml_folder(Path.cwd()), name=name)
    say(f"{host.name}: the tools in {path}")
    _serve(host, settings, address, port, url=announce_url, announces=announce)


@app.command()
def openapi(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The module's name.")],
    *,
    document: Document,
    base: Base = None,
    tag: Tags = None,
    path: Paths = None,
    auth: Auth = None,
    refresh: Refresh = 300,
    address: Address = "127.0.0.1",
    port: Port = 0,
    announce: Announce = True,
    announce_url: AnnounceUrl = None,
) -> None:
    """Serve the operations of an OpenAPI document as a module's tools, in the foreground.

    With TOOLFLEET_MODULE_KEY, only calls of the fleet are run.
    """
    need("host")
    from toolfleet_cli.hosting.hosts import auth_of, openapi_host
    from toolfleet_registry.config.host_settings import OpenApiSpec

    spec = OpenApiSpec(
        document=document,
        base=base,
        tags=tuple(tag or ()),
        paths=tuple(path or ()),
        auth=auth_of(auth or ()),
        refresh_seconds=refresh,
    )
    settings = load_settings()
    host = openapi_host(settings, name, spec, folder=Path.cwd())
    say(f"{host.name}: the operations of {document}")
    _serve(host, settings, address, port, url=announce_url, announces=announce)


@app.command()
def mcp(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The module's name.")] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND…]", help="The server's program and its arguments.")
    ] = None,
    *,
    url: Url = None,
    config: McpConfig = None,
    env: Env = None,
    header: Header = None,
    per_caller: Annotated[bool, typer.Option("--per-caller", help="A session for each user.")] = False,
    trusted: Annotated[bool, typer.Option("--trusted", help="Believe what a server says of repeated calls.")] = False,
    asks: Annotated[bool, typer.Option("--asks", help="An older server may ask in the middle of a call.")] = False,
    pin: Annotated[
        bool, typer.Option("--pin", help="Withhold what the server changes or adds until it is approved.")
    ] = False,
    login: Annotated[
        bool, typer.Option("--login", help="Log in at the server that `[hosts.NAME]` or --config describes, and end.")
    ] = False,
    address: Address = "127.0.0.1",
    port: Port = 0,
    announce: Announce = True,
    announce_url: AnnounceUrl = None,
) -> None:
    """Serve an MCP server's tools as a module, in the foreground: a program that is started here, or one that is reached by --url.

    With --config, each server of the file is a module, or only the one that is named; from --port on, each has a port. With TOOLFLEET_MODULE_KEY, only calls of the fleet are run.

    With --login a person logs in, for a server that wants OAuth: nothing is served, and its hosts have the tokens from then on.
    """
    need("host mcp")
    from toolfleet_cli.commands.mcp_hosts import McpCommand, log_in_mcp, serve_mcp

    facts = given(
        {
            "scope": "caller" if per_caller else None,
            "trusted": trusted or None,
            "asks": asks or None,
            "pin": pin or None,
        }
    )
    asked = McpCommand(name, tuple(command or ()), url, config, tuple(env or ()), tuple(header or ()), facts)
    if login:
        log_in_mcp(asked)
        raise typer.Exit
    raise typer.Exit(serve_mcp(asked, address, port, announces=announce, announce_url=announce_url))


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The NAME of `[hosts.NAME]` in `toolfleet.toml`.")],
    *,
    address: Address = "127.0.0.1",
    port: Port = 0,
    announce: Announce = True,
    announce_url: AnnounceUrl = None,
) -> None:
    """Serve what `toolfleet.toml` describes under `[hosts.NAME]`, in the foreground."""
    need("host")
    from toolfleet_cli.hosting.hosts import named_host

    settings = load_settings()
    host = named_host(settings, name, start=Path.cwd())
    say(f"{host.name}: as toolfleet.toml says")
    _serve(host, settings, address, port, url=announce_url, announces=announce)


def _serve(
    host: "ServedModule", settings: Settings, address: str, port: int, *, url: str | None, announces: bool
) -> NoReturn:
    """Serve a host until a signal ends it, and end the command."""
    from toolfleet_cli.hosting.host_server import serve_host

    announced_by = settings if announces else None
    raise typer.Exit(serve_host(host, address, port, announced_by=announced_by, url=url, metered_by=settings))
