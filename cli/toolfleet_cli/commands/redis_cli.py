"""Runs Redis's own command line at the fleet's Redis: `toolfleet redis-cli`."""

import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer

from toolfleet_registry.errors import NoRedis, SettingsError
from toolfleet_registry.redis.urls import fleet_url, is_sentinel_url
from toolfleet_registry.settings import load_settings

_TLS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}
"""The names of a URL's options at the command line of redis-cli."""


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    # What it does not know is redis-cli's: `toolfleet redis-cli --scan`.
    forwards = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("redis-cli", context_settings=forwards, add_help_option=False)(redis_cli)


def redis_cli(context: typer.Context) -> None:
    """Open redis-cli at the fleet's Redis, with what follows as its arguments."""
    settings = load_settings()
    url = fleet_url(settings.redis_url)
    if is_sentinel_url(url):
        raise SettingsError("redis-cli knows no sentinels: ask one for the master's address, and connect to that.")
    words, env = arguments(url)
    binary = _binary()
    os.execve(binary, [str(binary), *words, *context.args], {**os.environ, **env})  # noqa: S606 - no shell is the point


def arguments(url: str) -> tuple[list[str], dict[str, str]]:
    """Return the words for redis-cli, and its environment with the password, as everybody can see a command line."""
    parts = urlsplit(url)
    place = (
        ["-s", parts.path] if parts.scheme == "unix" else ["-h", parts.hostname or "", "-p", str(parts.port or 6379)]
    )
    options = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in parts.query.split("&"))}
    database = options.get("db")
    if parts.scheme != "unix":
        database = parts.path.strip("/") or database
    user = ["--user", unquote(parts.username)] if parts.username else []
    tls = ["--tls"] if parts.scheme == "rediss" else []
    if tls:
        tls += [word for name, option in _TLS.items() if name in options for word in (option, options[name])]
        tls += ["--insecure"] if options.get("ssl_cert_reqs") == "none" else []
    env = {"REDISCLI_AUTH": unquote(parts.password)} if parts.password else {}
    return [*place, *(["-n", database] if database else []), *user, *tls], env


def _binary() -> Path:
    """Return redis-cli from PATH, else the one next to the server that `up` would start. Raises `SettingsError`."""
    from toolfleet_cli.local.redis_server import find_redis_server

    for name in ("redis-cli", "valkey-cli"):
        if found := shutil.which(name):
            return Path(found)
    try:
        beside = find_redis_server().with_name("redis-cli")
    except NoRedis:
        beside = Path()
    if not beside.is_file():
        raise SettingsError("There is no redis-cli: install redis-tools, or the 'toolfleet[worker]' extra.")
    return beside
