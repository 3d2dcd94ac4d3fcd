"""Builds the hosts of tool folders, of OpenAPI documents, and of `[hosts.NAME]` in `toolfleet.toml` from settings."""

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from toolfleet_cli.hosting.host_server import ChangeNotice, check_host_name, read_secrets
from toolfleet_modules.calls.authentication import KEY_VARIABLE
from toolfleet_modules.hosts.child_process import USER_VARIABLE, Fence
from toolfleet_modules.hosts.folder.folder_host import FolderHost
from toolfleet_modules.hosts.folder.generation import FolderOptions
from toolfleet_modules.hosts.folder.packages import InstallOptions
from toolfleet_modules.hosts.folder.scan import ScanRules
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost, OpenApiOptions, base_fault, is_url
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_registry.config.host_settings import (
    NAME_FORM,
    FencedSpec,
    FolderSpec,
    McpSpec,
    OpenApiSpec,
    Places,
    SecretSource,
)
from toolfleet_registry.config.run_file import FOLDER
from toolfleet_registry.config.setting_sources import find_toml, private_places
from toolfleet_registry.directory.requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.settings import Settings

_log = logging.getLogger("toolfleet.host")

_REDIS_SECONDS = 5.0
_LISTEN_SECONDS = 0.5  # between two questions
# Until Redis is asked again that did not answer: a requester of a reload waits three seconds for hosts to start.
_AWAY_SECONDS = 1.0
_INSTALL_SECONDS = 40.0  # for packages that are being installed, before the answer says that they are not there

_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FORBIDDEN = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "cookie"})
_PLACE = re.compile(rf"\$\{{({NAME_FORM})\}}")


def folder_host(settings: Settings, folder: Path | None, *, beside: Path, name: str | None = None) -> FolderHost:
    """Return the host of a folder, or of named `tools`, as `[hosts.NAME]` describes it if that is there; `beside` is the folder of `toolfleet.toml`.

    Raises `SettingsError` for a missing folder, an invalid name, and a missing variable or secret.
    """
    name = check_host_name(name or (folder or beside).resolve().name, option="--name")
    if folder is not None and not folder.is_dir():
        raise SettingsError(f"There is no folder {folder}.")
    spec = settings.hosts.get(name)
    if not isinstance(spec, FolderSpec):
        spec = FolderSpec(folder=folder)
    host = FolderHost(options_of(settings, spec, name, folder, beside=beside), listener=ChangeNotice(settings))
    host.lifespans.append(ReloadListener(settings, host).running)
    return host


def options_of(settings: Settings, spec: FolderSpec, name: str, folder: Path | None, *, beside: Path) -> FolderOptions:
    """Return the options of serving a folder. Raises `SettingsError` for a missing variable or secret."""
    environments = (beside / settings.host_data_folder / "environments").resolve()
    # The folder that was named, which the settings may not know.
    fence = fence_of(spec.model_copy(update={"folder": folder}), name, settings.secrets, beside=beside)
    return FolderOptions(
        name,
        folder,
        description=spec.description,
        lines=spec,
        key=os.environ.get(KEY_VARIABLE, ""),
        named=spec.tools,
        trusted=settings.trusted_tool_namespaces,
        owners_file=(beside / FOLDER / f"owners-{name}.json").resolve(),
        python_path=[*(each for each in sys.path if each), str(beside.resolve())],
        security=settings.tool_security,
        rules=ScanRules().without(settings.tool_allowed_imports),
        fence=replace(fence, readable=(*fence.readable, environments)),
        packages=InstallOptions(
            environments,
            allow_builds=spec.allow_builds,
            options=settings.tool_install_options,
        ),
        secrets=read_secrets(spec.secrets, settings.secrets, folder=beside),
        load_seconds=settings.discovery_timeout_seconds,
        is_lazy=settings.tool_lazy,
        exception_text=spec.exception_text,
        processes=settings.tool_processes,
        longest_call_seconds=settings.max_timeout,
    )


def fence_of(spec: FencedSpec, name: str, sources: Mapping[str, SecretSource], *, beside: Path | None = None) -> Fence:
    """Return the fence around a host's processes; relative paths start at the folder `beside`. Raises `SettingsError` for a variable that is not set, or that holds a secret."""
    hidden = {(sources.get(each) or SecretSource(variable=each)).variable for each in spec.secrets}
    if shown := [each for each in spec.variables if each in hidden]:
        raise SettingsError(
            f"The variable {shown[0]} holds a secret of {name!r}: take it out of `variables`, or every tool could read it."
        )
    if missing := [each for each in spec.variables if each not in os.environ]:
        raise SettingsError(f"The tools of {name!r} need the variable {missing[0]}, which is not set.")
    user = os.environ.get(USER_VARIABLE)
    places = spec.places(beside := beside or Path.cwd()) or Places()
    return Fence(
        user=int(user) if user and spec.isolation == "none" else None,
        **places._asdict(),
        private=private_places(beside, sources),
        memory_bytes=None if spec.memory_mb is None else spec.memory_mb * 2**20,
        cpu_seconds=spec.cpu_seconds,
        open_files=spec.open_files,
        processes=spec.processes,
        nice=spec.nice,
        isolation=spec.isolation,
        variables={each: os.environ[each] for each in spec.variables},
    )


class ReloadListener:
    """Listens for requests to reload one host. Without the fleet's Redis there are none."""

    def __init__(self, settings: Settings, host: FolderHost) -> None:
        self._settings = settings
        self._host = host
        self._id = uuid4().hex

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen meanwhile."""
        if self._settings.redis_url is None:
            yield
            return
        task = asyncio.ensure_future(self._listen())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        """Listen for requests. Those made before the host's start are ignored: it has read everything then."""
        seen: int | None = None
        while True:
            try:
                async with self._settings.redis_client(timeout_seconds=_REDIS_SECONDS) as redis:
                    requests = ReloadRequests(redis, self._settings.keys)
                    while True:
                        latest = await requests.latest()
                        if seen is not None and latest != seen:
                            await self._answer(requests, seen, latest)
                        seen = latest
                        await asyncio.sleep(_LISTEN_SECONDS)
            except (FleetUnavailable, OSError) as exc:
                _log.debug("A reload cannot be requested: %s", exc)
            except Exception as exc:  # noqa: BLE001 - after any error, the next request is still served
                _log.error("A request to reload %s was not answered", self._host.name, exc_info=exc)
            await asyncio.sleep(_AWAY_SECONDS)

    async def _answer(self, requests: ReloadRequests, since: int, latest: int) -> None:
        host = self._host
        await requests.answer(since, latest, self._id, ReloadAnswer(module=host.name))
        try:
            await host.reload(is_forced=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INSTALL_SECONDS):
                    while self._is_installing():  # noqa: ASYNC110 - a process of its own does it
                        await asyncio.sleep(_LISTEN_SECONDS)
        except Exception as exc:  # noqa: BLE001 - with any error, the requester gets the present state
            _log.error("%s was not reloaded", host.name, exc_info=exc)
        manifest = host.manifest
        done = ReloadAnswer(
            module=host.name, is_done=True, tools=manifest.listed_count, errors=list(manifest.load_errors or ())
        )
        await requests.answer(since, latest, self._id, done)

    def _is_installing(self) -> bool:
        return any(each.error_type == "Installing" for each in self._host.manifest.load_errors or ())


def openapi_host(settings: Settings, name: str, spec: OpenApiSpec, *, folder: Path) -> OpenApiHost:
    """Return the host of a document; `folder` is where relative files lie.

    Raises `SettingsError` for a name that will not do, a file that is not there, an address that is none, and a secret that cannot be read.
    """
    document = spec.document if is_url(spec.document) else str((folder / spec.document).absolute())
    _check(name, spec, document)
    filled = [*spec.auth.values(), *spec.headers.values()]
    named = dict.fromkeys([*spec.secrets, *(place for text in filled for place in _PLACE.findall(text))])
    return OpenApiHost(
        OpenApiOptions(
            check_host_name(name),
            document,
            base=spec.base,
            tags=spec.tags,
            paths=spec.paths,
            auth=spec.auth,
            secrets=read_secrets(named, settings.secrets, folder=folder),
            description=spec.description,
            lines=spec,
            key=os.environ.get(KEY_VARIABLE, ""),
            refresh_seconds=spec.refresh_seconds,
            checks_results=spec.checks_results,
            slashes=spec.slashes,
            headers=spec.headers,
            longest_call_seconds=settings.max_timeout,
        ),
        listener=ChangeNotice(settings),
    )


def auth_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the secrets by their security schemes, from `SCHEME=${SECRET}`. Raises `SettingsError`, which shows no value."""
    found = dict[str, str]()
    for text in texts:
        scheme, separator, value = text.partition("=")
        if not separator or not scheme:
            raise SettingsError("An --auth is SCHEME=${SECRET}: one has no '='.")
        found[scheme] = value
    return found


def _check(name: str, spec: OpenApiSpec, document: str) -> None:
    if is_url(document):
        if fault := base_fault(document.partition("?")[0]):
            raise SettingsError(f"The document of {name!r} {fault}.")
        if (spec.auth or any(map(_PLACE.search, spec.headers.values()))) and spec.base is None:
            raise SettingsError(f"{name!r} needs a base: secrets are not sent to where a document on a server says.")
    elif not Path(document).is_file():
        raise SettingsError(f"There is no document {document}.")
    if spec.base is not None and (fault := base_fault(spec.base)):
        raise SettingsError(f"The base of {name!r} {fault}.")
    for field, text in spec.headers.items():
        if not _FIELD.fullmatch(field) or field.lower() in _FORBIDDEN or not text.isprintable():
            raise SettingsError(
                f"{name!r} cannot send the header {field[:80]!r}: its name, or its value, is no header's."
            )
    if plain := [scheme for scheme, text in spec.auth.items() if not _PLACE.search(text)]:
        raise SettingsError(
            f"What is sent for {plain[0]!r} has no ${{SECRET}}: name a secret there, in single quotes in a shell."
        )


def named_host(settings: Settings, name: str, *, start: Path) -> ServedModule:
    """Return the host of this name; relative paths start at the folder of the `toolfleet.toml` that is nearest to `start`. Raises `SettingsError`."""
    spec = settings.hosts.get(name)
    if spec is None:
        known = ", ".join(sorted(settings.hosts)) or "none"
        raise SettingsError(f"There is no [hosts.{name[:80]}] in {toml_folder(start)}; there are: {known}.")
    beside = toml_folder(start)
    if isinstance(spec, McpSpec):
        from toolfleet_cli.hosting.mcp import mcp_host

        return mcp_host(settings, spec, name=name, beside=beside)
    if isinstance(spec, FolderSpec):
        folder = None if spec.folder is None else beside / spec.folder
        return folder_host(settings, folder, beside=beside, name=name)
    return openapi_host(settings, name, spec, folder=beside)


def toml_folder(start: Path) -> Path:
    """Return the folder of the `toolfleet.toml` that applies in `start`; `start` if there is none."""
    toml = find_toml(start)
    return start if toml is None else toml.parent
