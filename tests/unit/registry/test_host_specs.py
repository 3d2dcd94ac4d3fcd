"""What `toolfleet.toml` says of hosts and secrets: each table is of one kind, and what is wrong is one sentence."""

from typing import Any

import pytest

from toolfleet_registry.config.host_specs import FolderSpec, HostBase, McpSpec, OpenApiSpec
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings


def hosts(**tables: Any) -> dict[str, HostBase]:
    return dict(load_settings(hosts=tables).hosts)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ({"folder": "owls"}, FolderSpec),
        ({"command": ["owls", "--serve"], "trusted": True}, McpSpec),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}, McpSpec),
        ({"document": "owls.yaml", "base": "http://127.0.0.1:1"}, OpenApiSpec),
    ],
    ids=["folder", "program", "server", "document"],
)
def test_a_table_is_of_the_kind_that_its_field_says(table: dict[str, Any], kind: type[HostBase]) -> None:
    """It is the same once more when it is given as an object."""
    (spec,) = hosts(owls=table).values()
    assert type(spec) is kind
    assert hosts(owls=spec)["owls"] == spec


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hosts": {"owls": {}}}, "folder, tools, command, url, document"),
        ({"hosts": {"owls": {"folder": "a", "document": "b"}}}, "folder, tools, command, url, document"),
        ({"hosts": {"owls": {"command": ["a"], "url": "http://b"}}}, "either a command or a url"),
        ({"hosts": {"owls": {"command": []}}}, "either a command or a url"),
        ({"hosts": {"owls": {"folder": "a", "speed": 3}}}, "speed"),
        ({"hosts": {"owls": {"folder": "a", "secrets": ["no name"]}}}, "secrets"),
        ({"hosts": {"local": {"folder": "a"}}}, "cannot be named 'local'"),
        ({"secrets": {"TOKEN": {}}}, "one source: variable, file or command"),
        ({"secrets": {"TOKEN": {"variable": "A", "file": "b"}}}, "one source: variable, file or command"),
        ({"secrets": {"a-b": {"variable": "A"}}}, "cannot be named 'a-b'"),
    ],
    ids=[
        "nothing",
        "two kinds",
        "program and server",
        "no program",
        "no such field",
        "no name",
        "a name of the fleet's",
        "no source",
        "two sources",
        "no variable's name",
    ],
)
def test_what_is_wrong_is_said_with_its_place(settings: dict[str, Any], words: str) -> None:
    """Nothing of it is guessed."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**settings)
    assert words in str(caught.value)
