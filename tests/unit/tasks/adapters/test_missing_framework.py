"""An adapter without its framework says what to install."""

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("adapter", "framework", "name", "extra"),
    [
        ("pydantic_ai", "pydantic_ai", "FleetToolset", "pydantic-ai"),
        ("openai_agents", "agents", "FleetTools", "openai-agents"),
        ("langchain", "langchain.agents.middleware", "FleetMiddleware", "langchain"),
        ("claude", "mcp_types", "fleet_server", "claude"),
    ],
)
def test_it_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, adapter: str, framework: str, name: str, extra: str
) -> None:
    """Importing it costs nothing; who asks for what it has reads the command."""
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"toolfleet_tasks.adapters.{adapter}", raising=False)
    face = import_module(f"toolfleet.adapters.{adapter}")
    vars(face).pop(name, None)

    with pytest.raises(ImportError, match=rf"pip install 'toolfleet\[{extra}\]'"):
        getattr(face, name)
