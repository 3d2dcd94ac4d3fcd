"""Names tools after operations: a name depends on the document alone, and no two operations share one."""

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from toolfleet_modules.hosts.openapi.documents.document import OpenApiDocument, OperationUnusable
from toolfleet_modules.hosts.openapi.documents.operations import METHODS

LONGEST = 100
"""Characters of a tool's name after its module's."""

_DIGEST = 8
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_PLAIN_LABEL = re.compile(r"[a-z]+(/[A-Za-z0-9-]+)+", re.ASCII)
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_GAPS = re.compile(r"[^A-Za-z0-9.-]+", re.ASCII)
_OURS = re.compile(r"-x[0-9a-f]{8}$")  # a name's end that could be one of ours


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
    """The same for an argument's name, which providers take up to 64 characters of."""
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


_LONGEST_ARGUMENT = 64
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
