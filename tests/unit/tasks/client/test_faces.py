"""The two faces of a fleet: the asynchronous one, and the synchronous one that is derived from it."""

import inspect
import re
import typing
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from toolfleet import CallHandle, EvalGate, Settings, SyncCallHandle, SyncToolFleet, ToolFleet
from toolfleet.tags import TagRegistry
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.specs import RegistryEvent

NAMESPACES = ("jobs", "programs", "approvals", "dead_letters", "wakeups", "modules", "queues", "canvas")
# How one gets the other face; what `TagRegistry` needs; and what a gateway needs, which serves many at once.
ONLY_ASYNC = {"sync", "call_around", "inbox"}
CLOSED = ToolFleet(settings=Settings(redis_url="redis://127.0.0.1:1"))
PAIRS: dict[str, tuple[type[Any], type[Any]]] = {
    "ToolFleet": (ToolFleet, SyncToolFleet),
    "CallHandle": (CallHandle, SyncCallHandle),
    **{name: (type(getattr(CLOSED, name)), type(getattr(SyncToolFleet(CLOSED), name))) for name in NAMESPACES},
}
COUNTERPARTS: dict[object, object] = {"CallHandle": "SyncCallHandle", RegistryEvents: Generator[RegistryEvent]}


def methods_of(face: type[Any]) -> dict[str, inspect.Signature]:
    names = {name for name in dir(face) if not name.startswith("_")} - ONLY_ASYNC
    found = {name: getattr(face, name) for name in names}
    return {
        name: inspect.signature(one, globals={**vars(inspect.getmodule(face)), **vars(typing)})
        for name, one in found.items()
        if callable(one)
    }


def synchronous(signature: inspect.Signature) -> inspect.Signature:
    """The same without what is awaited. A coroutine's annotation is that of its result already."""
    told = signature.return_annotation
    if typing.get_origin(told) is AsyncGenerator:
        told = Generator[typing.get_args(told)[0]]  # type: ignore[misc, unused-ignore] # a type as a value
    return signature.replace(return_annotation=COUNTERPARTS.get(told, told))


@pytest.mark.parametrize("name", PAIRS)
def test_both_faces_have_the_same_methods_with_the_same_signatures(name: str) -> None:
    """The same parameters with the same defaults and annotations; results are the same but for what is awaited."""
    asynchronous, plain = (methods_of(face) for face in PAIRS[name])

    assert {method: synchronous(signature) for method, signature in asynchronous.items()} == plain
    assert len(plain) >= 2


@pytest.mark.parametrize("name", PAIRS)
def test_no_method_of_the_synchronous_face_is_a_coroutine(name: str) -> None:
    """Each says what it does, and returns what it returns at once."""
    _, plain = PAIRS[name]
    methods = [getattr(plain, method) for method in methods_of(plain)]

    assert not any(inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method) for method in methods)
    assert all(inspect.getdoc(method) for method in methods)


def test_what_is_not_in_a_namespace_is_for_calls_and_tools() -> None:
    """A fleet has ten methods of its own, and seven namespaces; what gateways need stands beside them."""
    own = {
        "call",
        "call_many",
        "close",
        "open",
        "remaining",
        "search",
        "submit",
        "sync",
        "tools",
        "tools_to_openai_format",
    }

    assert {name for name in dir(CLOSED) if not name.startswith("_")} == own | {
        *NAMESPACES,
        "call_around",
        "artifacts",
        "begun_calls",
        "hooks",
    }


DESCRIBED = [
    *(face for face, _ in PAIRS.values()),
    type(CLOSED.artifacts),
    type(CLOSED.hooks),
    type(CLOSED.begun_calls),
    TagRegistry,
    EvalGate,
]


def own_methods(face: type[Any]) -> dict[str, Any]:
    found = {name: getattr(face, name) for name in vars(face) if not name.startswith("_")}
    return {name: each for name, each in found.items() if callable(each)}


@pytest.mark.parametrize("face", DESCRIBED, ids=lambda face: face.__name__)
def test_each_method_describes_what_it_takes_and_returns(face: type[Any]) -> None:
    """Its docstring has each parameter below `Args`, and what it returns below `Returns` or `Yields`."""
    for name, method in own_methods(face).items():
        signature, text = inspect.signature(method), inspect.getdoc(method) or ""
        described = set(
            re.findall(r"^    \*?(\w+): ", text.partition("\nArgs:\n")[2].partition("\n\n")[0], re.MULTILINE)
        )
        assert signature.parameters.keys() - {"self"} == described, name
        ends = signature.return_annotation is None or name in {"cancel", "close"}
        assert ends or "\nReturns:\n" in text or "\nYields:\n" in text, name


@pytest.mark.parametrize("face", [ToolFleet, TagRegistry], ids=lambda face: face.__name__)
def test_what_is_made_describes_what_it_is_made_of(face: type[Any]) -> None:
    """The docstring of the class has each parameter below `Args`."""
    text = (inspect.getdoc(face) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]

    assert set(re.findall(r"^    (\w+): ", text, re.MULTILINE)) == inspect.signature(face).parameters.keys()
