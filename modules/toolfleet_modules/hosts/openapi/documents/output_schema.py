"""Makes a tool's output schema of the answers that an operation says mean success."""

import contextlib
from dataclasses import dataclass
from typing import Any

from toolfleet_modules.hosts.openapi.documents.body_plan import is_json
from toolfleet_modules.hosts.openapi.documents.document import OpenApiDocument, OperationUnusable
from toolfleet_modules.hosts.openapi.documents.json_schemas import SchemaTranslator
from toolfleet_modules.hosts.openapi.documents.operations import Operation

_EMPTY = frozenset({"204", "205"})


@dataclass(frozen=True, slots=True)
class DescribedAnswer:
    """A document's description of answers with one status: whether they are JSON, or empty, and their headers in lower case."""

    is_json: bool
    is_empty: bool
    headers: frozenset[str]


def described_answers(operation: Operation, document: OpenApiDocument) -> dict[str, DescribedAnswer]:
    """Return the description of each status, such as `200`, `2XX` or `DEFAULT`; unreadable ones are left out."""
    found = dict[str, DescribedAnswer]()
    for status, node in operation.responses.items():
        with contextlib.suppress(OperationUnusable):
            said = document.resolved(node)
            content, headers = (
                [*each] if isinstance(each := said.get(name), dict) else [] for name in ("content", "headers")
            )
            found[str(status).upper()] = DescribedAnswer(
                any(map(is_json, content)),
                operation.method == "head" or str(status) in _EMPTY,
                frozenset(name.lower() for name in headers),
            )
    return found


def output_schema(
    operation: Operation, document: OpenApiDocument, translator: SchemaTranslator
) -> dict[str, Any] | None:
    """The schema; `None` where an answer may be anything else than JSON that is described. Raises `OperationUnusable`."""
    found, references = list[Any](), set[str]()
    for status, node in operation.responses.items():
        if not str(status).startswith("2"):
            continue
        content = document.resolved(node).get("content")
        if operation.method == "head" or str(status) in _EMPTY:
            found.append({"type": "null"})
            continue
        if not isinstance(content, dict) or not content:
            return None  # which many documents leave out of answers that have one
        for media_type, said in content.items():
            described = said.get("schema") if isinstance(said, dict) else None
            if not is_json(media_type) or described is None:
                return None
            found.append(translator.translate(described, references))
    different = [each for number, each in enumerate(found) if each not in found[:number]]
    if not different:
        return None
    if not all(isinstance(each, dict) for each in different):
        raise OperationUnusable("InvalidSchema", "A response's schema is no object.")
    schema: dict[str, Any] = dict(different[0]) if len(different) == 1 else {"anyOf": different}
    definitions = translator.definitions(references)
    if not definitions:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **definitions}}
