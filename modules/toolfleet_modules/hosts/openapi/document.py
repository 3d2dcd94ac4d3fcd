"""Reads an OpenAPI document: its text in bounded time, its references, its operations and the names of their tools."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from toolfleet_modules.hosts.openapi import yaml_child
from toolfleet_registry.system.http_bodies import loads_strict

_MOST_STEPS = 20  # of references that lead to references
_VERSION = re.compile(r"3\.([01])\.\d+(-.*)?")
_INDEX_DIGITS = 6
_SHOWN = 120  # characters

MOST_BYTES = 8 * 2**20
"""Of a document."""

MOST_SELECTED_BYTES = 32 * 2**20
"""The largest JSON document, in bytes, of which only some operations are served."""

_YAML_SECONDS = 60.0

METHODS = ("get", "head", "put", "delete", "post", "patch")
"""The methods that become tools: OPTIONS and TRACE are about the connection."""

_WITHOUT_BODY = frozenset({"get", "head"})  # where OpenAPI 3.0 ignores a body, and 3.1 has it

LONGEST = 100
"""Characters of a tool's name after its module's."""

_DIGEST = 8  # characters at the end of a name
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_PLAIN_LABEL = re.compile(r"[a-z]+(/[A-Za-z0-9-]+)+", re.ASCII)
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_GAPS = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_OURS = re.compile(r"-x[0-9a-f]{8}$")  # a name's end that could be one of ours

_LONGEST_ARGUMENT = 64
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class DocumentWrong(Exception):
    """A document cannot be read, or is none. The message, a sentence, says why."""


class OperationUnusable(Exception):
    """An operation cannot be a tool; `kind` names the error, the message, a sentence, says why."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class OpenApiDocument:
    """`root` is its JSON, `is_30` whether its schemas are those of OpenAPI 3.0."""

    root: Mapping[str, Any]
    is_30: bool

    @classmethod
    def of(cls, root: Any) -> Self:
        """Take JSON for a document. Raises `DocumentWrong` for another version, and for what has no paths."""
        if not isinstance(root, dict):
            raise DocumentWrong("It is no JSON object.")
        said = root.get("openapi")
        version = _VERSION.fullmatch(said) if isinstance(said, str) else None
        if version is None:
            found = "Swagger 2" if "swagger" in root else f"openapi: {said!r:.40}"
            raise DocumentWrong(f"It is {found}; OpenAPI 3.0 and 3.1 can be read.")
        if not isinstance(root.get("paths", {}), dict):
            raise DocumentWrong("Its paths are no object.")
        return cls(root, version[1] == "0")

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its content, in hex."""
        return digest_of(self.root)

    @property
    def security_schemes(self) -> Mapping[str, Any]:
        """The security schemes by name, unchanged."""
        components = self.root.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, dict) else None
        return schemes if isinstance(schemes, dict) else {}

    def at(self, reference: str) -> Any:
        """Return a reference's target.

        Raises `OperationUnusable` for one that leads out of the document, or nowhere.
        """
        if not reference.startswith("#"):
            raise OperationUnusable(
                "ExternalReference", f"It refers to {reference[:_SHOWN]!r}: only what is in the document is read."
            )
        found: Any = self.root
        for step in unquote(reference[1:]).split("/")[1:]:
            found = _member(found, step.replace("~1", "/").replace("~0", "~"))
        if found is None or not (reference == "#" or reference.startswith("#/")):
            raise OperationUnusable("ReferenceUnknown", f"It refers to {reference[:_SHOWN]!r}, which is not there.")
        return found

    def resolved(self, node: Any) -> Mapping[str, Any]:
        """Return the object itself, or what it refers to. Raises `OperationUnusable`, also for references in a circle."""
        for _ in range(_MOST_STEPS):
            if not isinstance(node, dict):
                raise OperationUnusable(
                    "InvalidOperation", f"There is {type(node).__name__} where an object should be."
                )
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return node
            node = self.at(reference)
        raise OperationUnusable("ReferenceUnknown", "Its references lead to one another, and to nothing else.")


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hex, however it was written."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _member(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isascii() and step.isdigit() and len(step) <= _INDEX_DIGITS:
        return node[int(step)] if int(step) < len(node) else None
    return None


async def document_of(data: bytes, *, is_selected: bool = False) -> OpenApiDocument:
    """Return the document that a text is. `is_selected`: only some of its operations are served. Raises `DocumentWrong`."""
    is_json = data.lstrip()[:1] == b"{"
    most = MOST_SELECTED_BYTES if is_json and is_selected else MOST_BYTES
    if len(data) > most:
        way_out = f"; JSON may have {MOST_SELECTED_BYTES} with tags or paths" if most == MOST_BYTES else ""
        raise DocumentWrong(f"It has more than {most} bytes{way_out}.")
    if not is_json:
        data = await _json_of(data)
    try:
        root = await asyncio.to_thread(loads_strict, data)
    except ValueError as exc:
        raise DocumentWrong(f"It is {exc}.") from None
    return OpenApiDocument.of(root)


async def _json_of(data: bytes) -> bytes:
    """YAML as JSON, which another process makes of it: one that takes too long is ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        yaml_child.__name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        async with asyncio.timeout(_YAML_SECONDS):
            out, said = await process.communicate(data)
    except TimeoutError:
        raise DocumentWrong(f"It cannot be read within {_YAML_SECONDS:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == yaml_child.WRONG:
        raise DocumentWrong(said.decode(errors="replace"))
    if process.returncode and not said:
        raise DocumentWrong("It is too large, or nested too deep, to be read in the time and memory that there are.")
    if process.returncode:
        raise DocumentWrong(f"It cannot be read: {said.decode(errors='replace').strip().splitlines()[-1][:200]}.")
    return out


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `parameters` and `body` are resolved; `security` has the alternatives, of which one is enough.

    `ignores_body`: the document describes one where its version of OpenAPI says that there is none.
    """

    method: str
    path: str
    summary: str
    tags: Sequence[str]
    is_deprecated: bool
    parameters: Sequence[Mapping[str, Any]]
    body: Mapping[str, Any] | None
    responses: Mapping[str, Any]
    security: Sequence[Mapping[str, Any]]
    servers: Sequence[Any]
    ignores_body: bool = False

    @property
    def label(self) -> str:
        """The operation's label: `GET /owls`."""
        return _label_of(self.method, self.path)


@dataclass(frozen=True, slots=True)
class OperationFault:
    """The reason why an operation is no tool."""

    label: str
    kind: str
    message: str


def operations_of(
    document: OpenApiDocument, *, tags: Sequence[str] = (), paths: Sequence[str] = ()
) -> Iterator[Operation | OperationFault]:
    """Yield each operation that has one of the tags and a path that matches one of the patterns, if any are given."""
    for path, found in document.root.get("paths", {}).items():
        if not path.startswith(("/", "x-")):
            yield OperationFault(path, "InvalidOperation", "Its path does not begin with '/'.")
        if not path.startswith("/") or (paths and not any(fnmatchcase(path, pattern) for pattern in paths)):
            continue
        try:
            item = document.resolved(found)
        except OperationUnusable as exc:
            yield OperationFault(path, exc.kind, str(exc))
            continue
        for method in METHODS:
            if method not in item or (tags and not set(tags) & set(_texts(_object(item[method]).get("tags")))):
                continue
            try:
                yield _operation(document, method, path, item)
            except OperationUnusable as exc:
                yield OperationFault(_label_of(method, path), exc.kind, str(exc))


def _label_of(method: str, path: str) -> str:
    """Return an operation's label: `GET /owls`."""
    return f"{method.upper()} {path}"


def _operation(document: OpenApiDocument, method: str, path: str, item: Mapping[str, Any]) -> Operation:
    node = item[method]
    if not isinstance(node, dict):
        raise OperationUnusable("InvalidOperation", "It is no object.")
    ignores_body = document.is_30 and method in _WITHOUT_BODY and "requestBody" in node
    body = None if ignores_body else node.get("requestBody")
    responses = node.get("responses", {})
    servers = node.get("servers") or item.get("servers") or document.root.get("servers")
    said = [_text(node.get("summary")), _text(node.get("description"))]
    return Operation(
        method,
        path,
        "\n\n".join(dict.fromkeys(filter(None, said))) or _text(item.get("summary")),
        _texts(node.get("tags")),
        node.get("deprecated") is True,
        _parameters(document, [*_list(item.get("parameters")), *_list(node.get("parameters"))]),
        None if body is None else document.resolved(body),
        responses if isinstance(responses, dict) else {},
        [each for each in _list(node.get("security", document.root.get("security"))) if isinstance(each, dict)],
        _list(servers),
        ignores_body,
    )


def _parameters(document: OpenApiDocument, found: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the parameters. Of several with one name in one place, the last one counts: an operation's own."""
    known = dict[tuple[str, str], Mapping[str, Any]]()
    for each in found:
        parameter = document.resolved(each)
        name, place = parameter.get("name"), parameter.get("in")
        if not isinstance(name, str) or not name or place not in {"path", "query", "header", "cookie"}:
            raise OperationUnusable("InvalidOperation", "It has a parameter without a name, or without a place.")
        known[name, place] = parameter
    return list(known.values())


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


class MethodNames(NamedTuple):
    """The `name` of an operation's tool after the module's, and the one that earlier versions gave it, if it is another."""

    name: str
    former: str | None


def method_names(document: OpenApiDocument) -> dict[str, MethodNames]:
    """Return the names of all operations by `get/owls`, served or not.

    An `operationId` that is a name is the name. Any other one, or method and path where none can be read, become what a
    model can say: `find pet by id` is `find_pet_by_id`, and `GET /owls/{id}` is `get_owls_id`. Where that is the name
    of two operations, each has `-x` and a digest at its end.
    """
    said = dict(_operations(document))
    own = {each for each in said.values() if _is_plain(each)}
    former = {label: _former_name(label, each) for label, each in said.items()}
    spoken = {label: each if each in own else _readable(each) or _readable(label) for label, each in said.items()}
    counted = Counter(name for label, name in spoken.items() if said[label] not in own)
    names = dict[str, str]()
    for label, name in spoken.items():
        is_free = counted[name] == 1 and name not in own and not _OURS.search(name)
        marked = former[label] if _OURS.search(former[label]) else _marked(label)
        names[label] = name if is_free or said[label] in own else marked
    first = {before: label for label, before in reversed(former.items())}  # of operations with one operationId
    for name in names.values():
        first.pop(name, None)  # it means another operation, or is no former one
    kept = {label: before for before, label in first.items()}
    return {label: MethodNames(name, kept.get(label)) for label, name in names.items()}


def argument_name(text: str) -> str:
    """Return an argument's name that providers take: of at most 64 characters."""
    return text if _is_plain_argument(text) else _marked(text, longest=_LONGEST_ARGUMENT)


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and len(text) <= LONGEST and not _OURS.search(text)


def _is_plain_argument(text: str) -> bool:
    return bool(_ARGUMENT.fullmatch(text)) and not _OURS.search(text)


def _marked(text: str, *, longest: int = LONGEST) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _OTHERS.sub("_", text).strip("_.-")[: longest - _DIGEST - 2]
    return f"{readable}-x{digest}" if readable else f"x-x{digest}"


def _operations(document: OpenApiDocument) -> Iterator[tuple[str, str]]:
    """Yield each operation with its `operationId`, which is empty where there is none."""
    for path, found in document.root.get("paths", {}).items():
        with contextlib.suppress(OperationUnusable):
            item = document.resolved(found)
            for method in filter(item.__contains__, METHODS):
                node = item[method]
                said = node.get("operationId") if isinstance(node, dict) else None
                yield f"{method}{path}", said if isinstance(said, str) else ""


def _readable(text: str) -> str:
    """Return what a model can say of a text: providers take it as it is, with a dot for two underscores."""
    return re.sub(r"_*\._*", ".", _GAPS.sub("_", text)).strip("_.-")[:LONGEST].rstrip("_.-")


def _former_name(label: str, operation_id: str) -> str:
    """Return the name that depends on its own operation only, which earlier versions gave it."""
    name = operation_id or (label.replace("/", "_") if _PLAIN_LABEL.fullmatch(label) else "")
    return name if _is_plain(name) else _marked(operation_id or label)
