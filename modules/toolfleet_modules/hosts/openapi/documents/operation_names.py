"""Names tools after operations: a name depends on its operation alone, and no two operations share one."""

import hashlib
import re

from toolfleet_modules.hosts.openapi.documents.operations import Operation

LONGEST = 100
"""Characters of a tool's name after its module's."""

_DIGEST = 8
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9-]+)+", re.ASCII)
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_OURS = re.compile(r"-x[0-9a-f]{8}$")  # a name's end that could be one of ours


def method_name(operation: Operation) -> str:
    """The name after the module's: the `operationId` if it is a name, else what is readable of it, `-x` and a digest.

    Without an `operationId` it is made of method and path; `GET /owls` is `get_owls`.
    """
    if operation.operation_id is not None:
        return plain_name(operation.operation_id)
    text = f"{operation.method}{operation.path}"
    name = f"{operation.method}{operation.path.replace('/', '_')}"
    return name if _is_plain(name) and _PLAIN_PATH.fullmatch(operation.path) else _marked(text)


def plain_name(text: str) -> str:
    """The text if it is a name, else one that no other text has."""
    return text if _is_plain(text) else _marked(text)


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


_LONGEST_ARGUMENT = 64
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
