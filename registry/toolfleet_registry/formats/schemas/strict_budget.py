"""Counts how many strict tools one request may have, and how complicated they may be together."""

from typing import Any

from toolfleet_registry.formats.dialects import Strictness
from toolfleet_registry.formats.schemas.notes import Notes
from toolfleet_registry.formats.schemas.subschemas import JsonObject


class StrictBudget:
    """Counts strict schemas; the first tools by name are served first."""

    def __init__(self, rules: Strictness | None) -> None:
        self._rules = rules
        self._tools = 0
        self._optionals = 0
        self._unions = 0

    def takes(self, schema: JsonObject, notes: Notes) -> bool:
        """Return whether there is room for one more schema, and count it; otherwise note which limit was reached."""
        rules = self._rules
        if rules is None:
            return False
        optionals, unions = _counted(schema)
        for what, wanted, limit in (
            ("strict tools", self._tools + 1, rules.tools),
            ("optional parameters in strict tools", self._optionals + optionals, rules.optionals),
            ("parameters of several types in strict tools", self._unions + unions, rules.unions),
        ):
            if limit is not None and wanted > limit:
                notes.add("strict", "refused", f"a request may have {limit} {what}, and this would make it {wanted}")
                return False
        self._tools += 1
        self._optionals += optionals
        self._unions += unions
        return True


def _counted(value: Any) -> tuple[int, int]:
    """The properties that may be left out, and the schemas of several types, anywhere inside."""
    if isinstance(value, list):
        pairs = [_counted(one) for one in value]
    elif isinstance(value, dict):
        pairs = [_counted(one) for one in value.values()]
        properties = value.get("properties")
        if isinstance(properties, dict) and isinstance(value.get("required"), list):
            pairs.append((len(properties) - len(value["required"]), 0))
        pairs.append((0, int("anyOf" in value or isinstance(value.get("type"), list))))
    else:
        return 0, 0
    return sum(optionals for optionals, _ in pairs), sum(unions for _, unions in pairs)
