"""Hosts of folders and of named functions, as `toolfleet.toml` describes them."""

from pathlib import Path

import pytest

from toolfleet_cli.hosting.folder import folder_host
from toolfleet_cli.hosting.named_host import named_host
from toolfleet_modules.sdk.client import ModuleClient
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
    async with ModuleClient(host) as client:  # type: ignore[arg-type] # any host is a module with an app
        assert (await client.call("double", n=4)).result == 8


def test_a_host_needs_a_folder_or_tools(home: Path) -> None:
    """And the folder must be there."""
    (home / "toolfleet.toml").write_text("[hosts.owls]\ntools = []\n")
    with pytest.raises(SettingsError, match="a folder, tools, or both"):
        load_settings()
    (home / "toolfleet.toml").write_text('[hosts.owls]\ntools = ["no dots"]\n')
    with pytest.raises(SettingsError, match="'no dots' is no dotted path"):
        load_settings()
    (home / "toolfleet.toml").write_text("")
    with pytest.raises(SettingsError, match="There is no folder"):
        folder_host(load_settings(), home / "owls", beside=home)
