"""Serves an OpenAPI document as a module: its operations are tools, and a change in its file or at its URL is served soon.

An operation that cannot be a tool is listed with the reason.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urljoin

import httpx

from toolfleet_modules.hosts.host import Host, HostOptions, Listener, file_changes, load_error
from toolfleet_modules.hosts.openapi.document import (
    MOST_SELECTED_BYTES,
    DocumentWrong,
    OpenApiDocument,
    Operation,
    OperationFault,
    OperationUnusable,
    digest_of,
    document_of,
    method_names,
    operations_of,
)
from toolfleet_modules.hosts.openapi.input_fields import InputPlan, input_plan, place_of
from toolfleet_modules.hosts.openapi.json_schemas import SchemaTranslator
from toolfleet_modules.hosts.openapi.operation_tool import (
    HttpSender,
    OperationTool,
    described_answers,
    output_schema,
    within_origin,
)
from toolfleet_modules.hosts.openapi.outgoing_request import Credentials, RequestForm
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import Effect, InEffect, ToolLoadError
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.schemas.validation import schema_fault
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.http_bodies import BodyReader

_log = logging.getLogger("toolfleet.host")

MOST_TOOLS = 2000
"""The most tools of a module."""

_BUILD_SECONDS = 60.0
_MOST_DESCRIBED, _MOST_NOTED = 4000, 1000  # characters
_VERSION_LENGTH = 12  # of a digest's characters
_EFFECTS: Mapping[str, Effect] = {
    "get": "read",
    "head": "read",
    "put": "idempotent",
    "delete": "idempotent",
    "post": "once",
    "patch": "once",
}

_FETCH_SECONDS = 30.0
_MOST_REDIRECTS = 5
_DEBOUNCE_MS = 500
_OK, _NOT_MODIFIED = 200, 304


@dataclass(frozen=True, slots=True)
class OpenApiOptions(HostOptions):
    """The options of an OpenAPI host.

    `document` is a file's path or a URL, `base` the service's URL, `auth` the credential for each security scheme.

    `refresh_seconds`: between two requests for a document that has a URL. `checks_results`: the service's results are
    validated against the document. `slashes`: parameters of paths that may have `/`, as `get_content.path`. `headers`:
    fields of each request, filled in as `auth` is.
    """

    document: str
    base: str | None = None
    tags: Sequence[str] = ()
    paths: Sequence[str] = ()
    auth: Mapping[str, str] = field(default_factory=dict)
    refresh_seconds: float = 300
    checks_results: bool = True
    slashes: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class DocumentTools:
    """The tools of a document: `tools` by their full names; `faults`: the operations that are no tools, and why."""

    tools: dict[str, OperationTool] = field(default_factory=dict)
    faults: list[OperationFault] = field(default_factory=list)


def tools_of(document: OpenApiDocument, options: OpenApiOptions, sender: HttpSender) -> DocumentTools:
    """Make the tools; a large document takes some seconds. Raises `DocumentWrong` if it takes too long."""
    return _Building(document, options, sender).all()


class _Building:
    def __init__(self, document: OpenApiDocument, options: OpenApiOptions, sender: HttpSender) -> None:
        self._document, self._options, self._sender = document, options, sender
        self._inputs, self._outputs = SchemaTranslator(document, "input"), SchemaTranslator(document, "output")
        self._credentials = Credentials(document, options.auth, options.secrets, options.headers)
        self._found = DocumentTools()
        self._labels: dict[str, str] = {}
        self._names = method_names(document)

    def all(self) -> DocumentTools:
        options, found = self._options, self._found
        give_up_at = machine_clock.monotonic() + _BUILD_SECONDS
        found.faults += [
            OperationFault(f"auth {name}", "SchemeUnknown", why) for name, why in self._credentials.faults.items()
        ]
        for each in operations_of(self._document, tags=options.tags, paths=options.paths):
            if machine_clock.monotonic() > give_up_at:
                raise DocumentWrong(f"Its tools cannot be made within {_BUILD_SECONDS:g} s.")
            if isinstance(each, OperationFault):
                found.faults.append(each)
                continue
            try:
                self._add(each)
            except OperationUnusable as exc:
                found.faults.append(OperationFault(each.label, exc.kind, str(exc)))
            except (AttributeError, KeyError, TypeError, ValueError) as exc:  # one of many forms that no document has
                found.faults.append(OperationFault(each.label, "InvalidOperation", f"It cannot be read: {exc!r:.200}."))
            except RecursionError:
                found.faults.append(OperationFault(each.label, "InvalidSchema", "Its schemas are nested too deep."))
        fields = [(tool, each) for tool in found.tools.values() for each in tool.form.plan.fields if each.has_slashes]
        names = ((each, name) for tool, each in fields for name in tool.definition.names)
        known = {f"{name}.{text}" for each, name in names for text in (each.argument, each.name)}
        found.faults += [
            OperationFault(f"slashes {each}", "ParameterUnknown", "No tool has this parameter in its path.")
            for each in options.slashes
            if f"{options.name}.{each}" not in known
        ]
        return found

    def _add(self, operation: Operation) -> None:
        if len(self._found.tools) >= MOST_TOOLS:
            raise OperationUnusable("TooManyTools", f"There are {MOST_TOOLS} tools already: choose by tags or paths.")
        base = _base_of(operation, self._options)
        credentials = self._credentials.of(operation.security)
        found = self._names[f"{operation.method}{operation.path}"]
        name, *former = (f"{self._options.name}.{each}" for each in found if each is not None)
        taken = {place_of(each.place, each.name) for each in credentials}
        plan = input_plan(operation, self._inputs, taken, names=[name, *former], slashes=self._options.slashes)
        if name in self._labels:
            raise OperationUnusable(
                "DuplicateTool", f"{self._labels[name]} has its operationId, too: that one is served."
            )
        form = RequestForm(operation.method, base, operation.path, plan, credentials, self._credentials.places)
        output, fault = self._output(operation)
        definition = self._definition(operation, [name, *former], plan, form, output, fault)
        wrong = schema_fault(definition)
        if wrong and output is not None:  # what it returns costs no tool: the check fails open
            definition = self._definition(operation, [name, *former], plan, form, None, wrong)
            wrong = schema_fault(definition)
        if wrong:
            raise OperationUnusable("InvalidSchema", f"It cannot be a tool: {wrong}.")
        described = described_answers(operation, self._document)
        self._found.tools[name] = OperationTool(definition, form, self._sender, self._credentials.hidden, described)
        self._labels[name] = operation.label

    def _definition(
        self,
        operation: Operation,
        names: Sequence[str],
        plan: InputPlan,
        form: RequestForm,
        output: dict[str, Any] | None,
        fault: str | None,
    ) -> ToolDefinition:
        hidden: Secrets = self._credentials.hidden
        effect = _EFFECTS[operation.method]
        unchecked = [] if fault is None else [f"Its results are not checked: {fault.removesuffix('.')}."]
        notes = "\n".join([*plan.notes, *unchecked])[:_MOST_NOTED]
        summary = hidden.hide(operation.summary)[:_MOST_DESCRIBED] or operation.label
        said: dict[str, Any] = {
            "name": names[-1],
            "description": f"{summary}\n\n{hidden.hide(notes)}".strip(),
            "input_schema": plan.schema,
            "output_schema": output,
            "tags": list(operation.tags),
            "effect": "idempotent" if effect == "once" and plan.key_header is not None else effect,
            "deprecated": operation.is_deprecated,
        }
        sent = [[each.argument, each.name, each.place, each.style, each.explode] for each in plan.fields]
        body = None if plan.body is None else plan.body.media_type
        digest = digest_of([said, form.method, form.base, form.path, sent, body, plan.key_header])
        said |= {"name": names[0], "former_names": names[1:]}  # last: a new name alone is no other code
        return ToolDefinition.model_validate({**said, "version": digest[:_VERSION_LENGTH], "code_digest": digest})

    def _output(self, operation: Operation) -> tuple[dict[str, Any] | None, str | None]:
        """Return the schema of its results, or `None` with what is wrong with it, if anything is."""
        if not self._options.checks_results:
            return None, None
        try:
            return output_schema(operation, self._document, self._outputs), None
        except OperationUnusable as exc:
            return None, str(exc)
        except RecursionError:
            return None, "their schema is nested too deep"


def _base_of(operation: Operation, options: OpenApiOptions) -> str:
    """Return the base URL of the operation's service: that of the options, else the document's own first server.

    Raises `OperationUnusable`.
    """
    if options.base is not None:
        return options.base.rstrip("/")
    if not operation.servers or not isinstance(operation.servers[0], dict):
        raise OperationUnusable("ServerUnknown", "The document names no server: say where the service is (base).")
    server = operation.servers[0]
    url = server.get("url")
    text = url if isinstance(url, str) else ""
    variables = server.get("variables")
    for name, each in variables.items() if isinstance(variables, dict) else ():
        text = text.replace(f"{{{name}}}", str(each.get("default", "")) if isinstance(each, dict) else "")
    if options.document.startswith(("http://", "https://")):
        text = urljoin(options.document, text)
    if fault := base_fault(text):
        raise OperationUnusable("ServerUnknown", f"The document's server {fault}: say where the service is (base).")
    return text.rstrip("/")


def base_fault(url: str) -> str | None:
    """Return what is wrong with a service's address, as a clause, or `None`."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "is no URL"
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        return "is no URL of http or https"
    if parsed.userinfo:
        return "has a user or a password in its URL, which belong into a secret"
    if parsed.query or parsed.fragment or "{" in url:
        return "has a query, a fragment or a variable in its URL"
    return None


def is_url(document: str) -> bool:
    """Return whether a document is named by its URL."""
    return document.startswith(("http://", "https://"))


class FileSource:
    """A file, which is watched."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: bytes | None = None

    async def read(self) -> bytes | None:
        """Return its bytes; `None` if it is unchanged since the last reading. Raises `DocumentWrong`."""
        try:
            data = await asyncio.to_thread(self._content)
        except OSError as exc:
            self._known = None
            raise DocumentWrong(f"It cannot be read: {exc.strerror}.") from None
        if data == self._known:
            return None
        self._known = data
        return data

    def changes(self) -> AsyncGenerator[None]:
        """Yield each time it may have changed; its folder is watched, as editors replace the file."""
        return file_changes(
            self._file.parent, lambda path: Path(path).name == self._file.name, debounce_ms=_DEBOUNCE_MS
        )

    def _content(self) -> bytes:
        with self._file.open("rb") as opened:
            return opened.read(MOST_SELECTED_BYTES + 1)


class UrlSource:
    """A URL, which is requested at intervals. Redirects are followed within its origin."""

    def __init__(self, url: str, refresh_seconds: float) -> None:
        self._url = url
        self._seconds = refresh_seconds
        self._validators: dict[str, str] = {}
        self._known: bytes | None = None

    async def read(self) -> bytes | None:
        """Return its bytes; `None` if it is unchanged since the last reading. Raises `DocumentWrong`.

        After an unreadable document, the next one counts as changed in any case.
        """
        try:
            return await self._changed()
        except DocumentWrong:
            self._known, self._validators = None, {}
            raise

    async def _changed(self) -> bytes | None:
        try:
            async with (
                asyncio.timeout(_FETCH_SECONDS),
                httpx.AsyncClient(trust_env=False, timeout=_FETCH_SECONDS) as client,
            ):
                data = await self._fetched(client)
        except TimeoutError:
            raise DocumentWrong(f"It did not arrive within {_FETCH_SECONDS:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise DocumentWrong(f"It cannot be fetched: {str(exc)[:200] or type(exc).__name__}.") from None
        except (BodyTooLarge, BodyUnreadable) as exc:
            raise DocumentWrong(f"It cannot be read: {exc}.") from None
        if data is None or data == self._known:
            return None
        self._known = data
        return data

    async def changes(self) -> AsyncGenerator[None]:
        """Yield each time it may have changed."""
        while True:
            await asyncio.sleep(self._seconds)
            yield

    async def _fetched(self, client: httpx.AsyncClient) -> bytes | None:
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            headers = {
                "Accept": "application/json, application/yaml, */*",
                "Accept-Encoding": "gzip",
                **self._validators,
            }
            async with client.stream("GET", url, headers=headers) as response:
                if response.status_code == _NOT_MODIFIED and self._known is not None:
                    return None
                if response.is_redirect:
                    url = within_origin(url, response.headers.get("location", "")) or ""
                    if not url:
                        raise DocumentWrong("Its server redirects to another one, which is not followed.")
                    continue
                if response.status_code != _OK:
                    raise DocumentWrong(f"Its server answers with status {response.status_code}.")
                return await self._body(response)
        raise DocumentWrong("Its server redirects without an end.")

    async def _body(self, response: httpx.Response) -> bytes:
        said = response.headers
        reader = BodyReader(
            MOST_SELECTED_BYTES, encoding=said.get("content-encoding", ""), announced=said.get("content-length", "")
        )
        async for chunk in response.aiter_raw():
            reader.feed(chunk)
        body = reader.finish()
        names = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}
        self._validators = {sent: said[name] for name, sent in names.items() if name in said}
        return body


DocumentSource: TypeAlias = FileSource | UrlSource


def _source_of(document: str, *, refresh_seconds: float) -> DocumentSource:
    """Return the source of a document that is named by a path or a URL."""
    return UrlSource(document, refresh_seconds) if is_url(document) else FileSource(Path(document))


class OpenApiHost(Host[OperationTool]):
    """A module whose `app` serves the operations; while its lifespan runs, the document is watched.

    A document that cannot be read leaves the tools as they are, and is a load error.
    """

    assumes_once = True

    def __init__(self, options: OpenApiOptions, *, listener: Listener | None = None) -> None:
        super().__init__(options, listener=listener, lifespan=self._running)
        self._options = options
        self._sender = HttpSender(most_bytes=options.result_bytes)
        self._source = _source_of(options.document, refresh_seconds=options.refresh_seconds)
        self._loading = asyncio.Lock()

    async def reload(self) -> bool:
        """Serve the document as it is now; returns whether anything is different."""
        async with self._loading:
            before = self.definitions
            try:
                data = await self._source.read()
                if data is None:
                    return False
                is_selected = bool(self._options.tags or self._options.paths)
                document = await document_of(data, is_selected=is_selected)
                found = await asyncio.to_thread(tools_of, document, self._options, self._sender)
                self.tools, errors = found.tools, [self._error(each) for each in found.faults]
            except DocumentWrong as exc:
                fault = OperationFault("", "DocumentWrong", str(exc))
                errors = [self._error(fault, "previous" if self.tools else "none")]
            is_changed = self.set_load_errors(errors) or self.definitions != before
            if is_changed:
                await self.tell()
            return is_changed

    def _error(self, fault: OperationFault, in_effect: InEffect = "none") -> ToolLoadError:
        hide, place = self._options.secrets.hide, f"{self._options.document} {fault.label}".strip()
        return load_error(hide(place), fault.kind, hide(fault.message), in_effect=in_effect)

    async def _watch(self) -> None:
        async for _ in self._source.changes():
            await self.reload_safely()

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Serve the document meanwhile."""
        async with self._sender.running():
            watching = asyncio.ensure_future(self._watch())
            try:
                await asyncio.sleep(0)  # so that it watches before the first reading: no change falls between both
                await self.reload()
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
