"""An `mcp.json` where a fleet is started: which servers of it `toolfleet up` serves, and what is wrong with it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from support.command import run
from toolfleet_cli.commands.up import found_servers
from toolfleet_registry.errors import SettingsError

CLOCK: dict[str, Any] = {"command": "mcp-server-time"}


def write(folder: Path, **servers: Any) -> Path:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file.resolve()


def test_each_server_is_a_module_and_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a name that a module can have; one that is switched off is left out."""
    file = write(tmp_path, clock=CLOCK, **{"my wiki": {"url": "https://wiki.test/mcp"}, "off": {"disabled": True}})
    found = found_servers(tmp_path, taken=["owls"])

    (clock, wiki) = found
    assert (clock.name, clock.command, clock.source) == ("clock", ("mcp", "clock", "--config", str(file)), file)
    assert wiki.name.startswith("my-wiki-")
    assert " ".join("".join(capsys.readouterr()).split()).endswith(f"are modules: clock, {wiki.name}")


def test_the_file_lies_beside_the_settings(tmp_path: Path) -> None:
    """Where there are some; one in a folder below is another program's."""
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "toolfleet.toml").write_text("")
    write(below, clock=CLOCK)
    assert found_servers(below, taken=()) == []
    write(tmp_path, clock=CLOCK)
    assert [each.name for each in found_servers(below, taken=())] == ["clock"]


@pytest.mark.parametrize("text", [None, '{"mcpServers": {}}', '{"mcpServers": {"clock": {"disabled": true}}}'])
def test_without_servers_there_is_nothing_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    if text is not None:
        (tmp_path / "mcp.json").write_text(text)
    assert found_servers(tmp_path, taken=()) == []
    assert "".join(capsys.readouterr()) == ""


def test_a_name_that_is_taken_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path, clock=CLOCK)
    with pytest.raises(SettingsError, match=r"two modules named 'clock'.*mcp\.json") as caught:
        found_servers(tmp_path, taken=["clock"])
    assert str(file) in str(caught.value)


def test_without_the_library_the_file_may_be_for_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what to install; the fleet starts without these modules."""
    write(tmp_path, clock=CLOCK)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mcp" else find(name))
    assert found_servers(tmp_path, taken=()) == []
    assert "pip install 'toolfleet[mcp]'" in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "mcp.json has no object `mcpServers`."),
        ('{"mcpServers": {"clock": {}}}', "either a command or a url"),
        ('{"mcpServers": {"clock": {"command": "x", "env": {"KEY": 5}}}}', "The server 'clock'"),
    ],
    ids=["no object", "no server", "no text"],
)
def test_what_cannot_be_meant_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(SettingsError) as caught:
        found_servers(tmp_path, taken=())
    assert words in str(caught.value)


def test_a_broken_file_ends_the_command(tmp_path: Path) -> None:
    """In one clear sentence; nothing is started."""
    (tmp_path / "mcp.json").write_text("{")
    ended = run("up", cwd=tmp_path)
    said = " ".join(ended.err.split())

    assert (ended.code, "mcp.json is not JSON." in said, "Traceback" in said) == (2, True, False), said
    assert not (tmp_path / ".toolfleet" / "logs").exists()
