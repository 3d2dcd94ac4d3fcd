"""Every field of the public models says what it is, in the docstring below it: what editors and mkdocs show."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import toolfleet
import toolfleet.formats
import toolfleet.sdk
import toolfleet.stores
import toolfleet.tags
import toolfleet.webhooks

FACES = (toolfleet, toolfleet.formats, toolfleet.sdk, toolfleet.stores, toolfleet.tags, toolfleet.webhooks)


def has_fields(value: object) -> bool:
    return isinstance(value, type) and (issubclass(value, BaseModel) or dataclasses.is_dataclass(value))


def fields_of(model: Any) -> set[str]:
    """Without what is private, and what a program of a user's never meets."""
    if issubclass(model, BaseModel):
        return set(model.model_fields)
    return {field.name for field in dataclasses.fields(model) if not field.name.startswith("_")}


def within(model: Any) -> Iterator[type]:
    """The models in a model's fields."""
    waiting: list[Any] = (
        [field.annotation for field in model.model_fields.values()] if issubclass(model, BaseModel) else []
    )
    while waiting:
        each = waiting.pop()
        waiting += get_args(each)
        if has_fields(each):
            yield each


def public_models() -> list[type]:
    named = [getattr(face, name) for face in FACES for name in face.__all__]
    found, waiting = set[type](), [each for each in named if has_fields(each)]
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += within(model)
    return sorted(found, key=lambda model: model.__name__)


def described(model: type) -> set[str]:
    """The fields with a docstring, those of its bases included."""
    found = set[str]()
    for kind in model.__mro__:
        if not kind.__module__.startswith("toolfleet"):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found.add(ast.unparse(field.target))
    return found


@pytest.mark.parametrize("model", public_models(), ids=lambda model: model.__name__)
def test_every_field_of_a_public_model_has_a_description(model: type) -> None:
    assert fields_of(model) - described(model) == set()
    assert inspect.getdoc(model)


def test_the_models_that_everybody_meets_are_among_them() -> None:
    names = {model.__name__ for model in public_models()}
    assert names >= {"Caller", "ToolCall", "ToolResult", "Audit", "ToolDefinition", "ToolParameter", "Settings"}
