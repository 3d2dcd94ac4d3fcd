"""Says which requests a client can answer, by the capabilities that it declares, and what stands for an answer that it cannot give."""

from collections.abc import Mapping
from typing import Any, Final

from toolfleet_registry.contracts.inputs import InputMethod, InputRequest

_CAPABILITIES: Final[Mapping[InputMethod, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_NOT_GIVEN: Final[Mapping[InputMethod, Mapping[str, Any]]] = {
    "elicitation/create": {"action": "cancel"},
    "roots/list": {"roots": []},
}
"""What a client would answer that has nobody to ask, and no files."""


def kinds_of(capabilities: Mapping[str, Any]) -> frozenset[InputMethod]:
    """The requests that a client takes which declares this."""
    return frozenset(method for method, name in _CAPABILITIES.items() if isinstance(capabilities.get(name), dict))


def takes_forms(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a client with these capabilities can have a person fill in a form; one that declares elicitation without details can."""
    declared = capabilities.get("elicitation")
    return isinstance(declared, dict) and (not declared or isinstance(declared.get("form"), dict))


def in_its_place(request: InputRequest) -> dict[str, Any] | None:
    """The answer for a client that cannot be asked; `None`: nothing can stand for one."""
    given = _NOT_GIVEN.get(request.method)
    return None if given is None else dict(given)


def capability_of(method: InputMethod) -> str:
    """The capability that a client would have to declare."""
    return _CAPABILITIES[method]
