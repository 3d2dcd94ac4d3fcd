"""Asks the providers' own packages about tools, calls and results.

They are imported at the first question: each process of a test run reads all test files, and few ask.
"""

from typing import Any

from toolfleet_registry.formats import Format


def accepts_tools(provider: Format, offers: list[dict[str, Any]]) -> None:
    """Raises what the provider's package raises for a list that is not what its request takes."""
    from support.schemas import provider_packages  # 90 MB

    provider_packages.accepts_tools(provider, offers)


def accepts_result(provider: Format, message: dict[str, Any]) -> None:
    """Raises for a message that the provider's package does not take."""
    from support.schemas import provider_packages

    provider_packages.accepts_result(provider, message)


def made_call(provider: Format, name: str, arguments: dict[str, Any], text: str) -> Any:
    """A tool call as the provider's package has it; `text` is the arguments as JSON."""
    from support.schemas import provider_packages

    return provider_packages.made_call(provider, name, arguments, text)
