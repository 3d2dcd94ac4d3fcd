"""The names of MCP servers' tools, and of servers in files of other programs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_cli.hosting.mcp_file import module_of, servers_in
from toolfleet_modules.hosts.mcp.tool_list import method_of
from toolfleet_registry.contracts.names import ToolName, is_module_name, name_fault
from toolfleet_registry.errors import SettingsError

NAMES = st.text(max_size=200) | st.from_regex(r"[a-z._/-]{1,70}", fullmatch=True)


@given(st.lists(NAMES, unique=True, max_size=20))
def test_no_two_names_are_mapped_to_one(names: list[str]) -> None:
    """And each is mapped to a name that a tool may have, which does not depend on the others."""
    mapped = [method_of(name) for name in names]
    assert len(set(mapped)) == len(mapped)
    for name in mapped:
        assert name_fault(str(ToolName.parse(f"zoo.{name}"))) is None
        assert method_of(name) != name or name in names


@pytest.mark.parametrize("name", ["git_log", "get-time", "files.read", "x" * 64])
def test_a_name_that_will_do_stays(name: str) -> None:
    """Models and people know it."""
    assert method_of(name) == name


@pytest.mark.parametrize("name", ["git/log", ".hidden", "a..b", "", "ü", "x" * 65, "log-0123456789ab"])
def test_any_other_keeps_what_is_readable(name: str) -> None:
    """With a digest; so does one that looks like a mapped one."""
    assert method_of(name) != name
    assert len(method_of(name)) <= 64


@given(st.text(max_size=100))
def test_a_server_of_any_name_is_a_module(name: str) -> None:
    """Other programs take any text."""
    assert is_module_name(module_of(name))


def test_a_file_of_another_program_is_read(tmp_path: Path) -> None:
    """What only that program understands is left out, and so is a server that is switched off."""
    file = tmp_path / "mcp.json"
    servers = {
        "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"T": "${env:TOKEN}"}, "autoApprove": ["x"]},
        "my wiki": {"type": "http", "url": "https://wiki.test/mcp", "toolfleet": {"trusted": True}},
        "off": {"command": "x", "disabled": True},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    git, wiki = servers_in(file).values()

    assert (git.command, git.env) == (("uvx", "mcp-server-git"), {"T": "${TOKEN}"})
    assert (wiki.url, wiki.trusted) == ("https://wiki.test/mcp", True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "no object `mcpServers`"),
        ('{"mcpServers": {}}', "has no servers"),
        ('{"mcpServers": {"a": 1}}', "'a'"),
        ('{"mcpServers": {"a": {}}}', "either a command or a url"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://a"}}}', "replaced by Streamable HTTP"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": 5}}}}', "env.K"),
    ],
)
def test_a_file_that_is_wrong_is_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    """It names the file and the server."""
    file = tmp_path / "mcp.json"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        servers_in(file)
    assert words in str(error.value)
    assert str(file) in str(error.value)
