"""Builds the host of an OpenAPI document from settings."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from toolfleet_cli.hosting.host_server import ChangeNotice, check_host_name
from toolfleet_cli.hosting.secret_values import read_secrets
from toolfleet_modules.hosts.openapi.document_tools import OpenApiOptions, base_fault
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost, is_url
from toolfleet_modules.requests.authentication import KEY_VARIABLE
from toolfleet_registry.config.host_settings import NAME_FORM, OpenApiSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import Settings

_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FORBIDDEN = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "cookie"})
_PLACE = re.compile(rf"\$\{{({NAME_FORM})\}}")


def openapi_host(settings: Settings, name: str, spec: OpenApiSpec, *, folder: Path) -> OpenApiHost:
    """The host of a document; `folder` is where relative files lie.

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
    """`SCHEME=${SECRET}` by schemes. Raises `SettingsError`, which shows nothing of a value."""
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
