"""Hosts of folders and of named functions, as `toolfleet.toml` describes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolfleet_cli.hosting.hosts import folder_host, named_host, openapi_host
from toolfleet_cli.hosting.mcp import mcp_host
from toolfleet_modules.sdk.client import ModuleClient
from toolfleet_registry.config.host_settings import McpSpec, OpenApiSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

TOML = """
trusted_tool_namespaces = ["acme.tools"]
tool_install_options = ["--no-index"]

[hosts.named]
tools = ["acme.tools.double"]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings, and a package beside them."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "tools.py").write_text("def double(n: int) -> int:\n    '''Double.'''\n    return 2 * n\n")
    (tmp_path / "toolfleet.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_functions_are_named_without_any_folder(home: Path) -> None:
    """Python finds them beside the settings, too."""
    host = named_host(load_settings(), "named", start=home)
    async with ModuleClient(host) as client:
        assert (await client.call("double", n=4)).result == 8


def test_a_host_needs_a_folder_or_tools(home: Path) -> None:
    (home / "toolfleet.toml").write_text("[hosts.owls]\ntools = []\n")
    with pytest.raises(SettingsError, match="a folder, tools, or both"):
        load_settings()
    (home / "toolfleet.toml").write_text('[hosts.owls]\ntools = ["no dots"]\n')
    with pytest.raises(SettingsError, match="'no dots' is no dotted path"):
        load_settings()
    (home / "toolfleet.toml").write_text("")
    with pytest.raises(SettingsError, match="There is no folder"):
        folder_host(load_settings(), home / "owls", beside=home)


def test_a_wrong_name_is_said_with_what_its_command_has(home: Path) -> None:
    """A folder gets another name by an option; an MCP server and a document have theirs where they are named."""
    (home / "birds.json").write_text("{}")
    settings, name = load_settings(), "No Name"
    made: list[Callable[[], object]] = [
        lambda: folder_host(settings, home, beside=home, name=name),
        lambda: mcp_host(settings, McpSpec(command=("true",)), name=name, beside=home),
        lambda: openapi_host(settings, name, OpenApiSpec(document="birds.json"), folder=home),
    ]
    said = list[str]()
    for make in made:
        with pytest.raises(SettingsError, match="'No Name' is no name for a module") as caught:
            make()
        said.append(str(caught.value).partition(": ")[2])

    assert said == ["give it another one with --name.", *["give it another one."] * 2]
