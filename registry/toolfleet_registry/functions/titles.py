"""Removes from JSON Schemas what says nothing more: the titles that pydantic makes of names, and `null` as a default.

A model reads every word, and some providers take no defaults.
"""

from typing import Any

_OF_SCHEMAS = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})


def without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy; a property that is called `title` stays."""
    return {
        keyword: {name: _copied(each) for name, each in value.items()}
        if keyword in _OF_SCHEMAS and isinstance(value, dict)
        else value
        if keyword in _VALUES
        else _copied(value)
        for keyword, value in schema.items()
        if keyword != "title" and not (keyword == "default" and value is None)
    }


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return without_titles(value)
    return [_copied(each) for each in value] if isinstance(value, list) else value


_VALUES = frozenset({"default", "const", "enum", "examples"})
