"""Finds the operations of a document, with what their paths say for all of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from toolfleet_modules.hosts.openapi.documents.document import OpenApiDocument, OperationUnusable

METHODS = ("get", "head", "put", "delete", "post", "patch")
"""Those that become tools: OPTIONS and TRACE are about the connection."""

_WITHOUT_BODY = frozenset({"get", "head"})  # where OpenAPI 3.0 ignores a body, and 3.1 has it


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `parameters` and `body` are resolved; `security` has the alternatives, of which one is enough.

    `ignores_body`: the document describes one where its version of OpenAPI says that there is none.
    """

    method: str
    path: str
    operation_id: str | None
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
        return label_of(self.method, self.path)


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
                yield OperationFault(label_of(method, path), exc.kind, str(exc))


def label_of(method: str, path: str) -> str:
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
    name, said = node.get("operationId"), [_text(node.get("summary")), _text(node.get("description"))]
    return Operation(
        method,
        path,
        name if isinstance(name, str) and name else None,
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
