"""Holds an OpenAPI document that was read, and resolves what refers to another place in it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import unquote

_MOST_STEPS = 20  # of references that lead to references
_VERSION = re.compile(r"3\.([01])\.\d+(-.*)?")
_INDEX_DIGITS = 6
_SHOWN = 120


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
        """The object itself, or what it refers to. Raises `OperationUnusable`, also for references in a circle."""
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
    """The SHA-256 of a JSON value, in hex, however it was written."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _member(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isascii() and step.isdigit() and len(step) <= _INDEX_DIGITS:
        return node[int(step)] if int(step) < len(node) else None
    return None
