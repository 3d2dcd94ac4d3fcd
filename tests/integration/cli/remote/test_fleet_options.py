"""Each command asks the gateway that it is told, and nobody else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from support.command import Run
from support.programs.closed_port import closed_port
from toolfleet_cli.app import command_line
from toolfleet_cli.remote import gateway_of
from toolfleet_registry.system.process import listening_socket

# What each command needs beside its options. A command without a row, that can be over a gateway, fails the test below.
NEEDED: dict[str, tuple[str, ...]] = {
    "agents list": (),
    "agents put": ("production",),
    "agents remove": ("production",),
    "agents rollback": ("production", "1"),
    "agents show": ("production",),
    "approvals approve": ("1",),
    "approvals list": (),
    "approvals reject": ("1",),
    "approvals show": ("1",),
    "audit forget": ("ada",),
    "audit tail": (),
    "audit show": ("call-1",),
    "call": ("owls.echo",),
    "dead-letters drop": ("--all",),
    "dead-letters list": (),
    "dead-letters replay": ("--all", "--kind", "webhook"),
    "dead-letters show": ("1",),
    "jobs cancel": ("1",),
    "jobs list": (),
    "jobs show": ("1",),
    "keys create": ("--user", "ada"),
    "keys list": (),
    "keys revoke": ("1",),
    "modules add": ("owls", "http://127.0.0.1:1"),
    "modules list": (),
    "modules refresh": (),
    "modules remove": ("owls",),
    "queues drain": ("owls",),
    "queues list": (),
    "queues pause": ("owls",),
    "queues resume": ("owls",),
    "status": (),
    "tools approve": ("owls.echo",),
    "tools diff": (),
    "tools disable": ("owls.echo",),
    "tools enable": ("owls.echo",),
    "tools forget": ("owls.echo",),
    "tools list": ("--closed",),
    "tools pin": ("owls",),
    "tools reload": (),
    "tools rollback": ("owls.echo", "1"),
    "tools search": ("owl",),
    "tools show": ("owls.echo",),
    "wake-ups drop": ("1",),
    "wake-ups list": (),
    "wake-ups replay": ("1",),
    "wake-ups show": ("1",),
    "why": ("owls.echo",),
}
# What is done where the fleet's secrets, files or processes are, or with the settings of this machine.
AT_HOME = {"modules key", "tools adopt-registry"}
OF_OPERATORS = (
    "agents",
    "approvals",
    "audit",
    "dead-letters",
    "jobs",
    "keys",
    "modules",
    "queues",
    "status",
    "tools",
    "wake-ups",
)


def commands() -> Iterator[tuple[str, set[str]]]:
    """Each command by its words, with its options."""
    root = get_command(command_line())
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        parts = command.commands if isinstance(command, TyperGroup) else {"": command}
        for part, one in parts.items():
            yield f"{name} {part}".strip(), {option for each in one.params for option in each.opts}


def test_every_command_of_operators_can_be_over_a_gateway() -> None:
    """By its URL, or by host and port; what changes the fleet by Redis says who has done it."""
    found = dict(commands())
    over = {name for name, options in found.items() if {"--url", "--host", "--port"} <= options}

    assert over == set(NEEDED)
    assert {name for name in found if name.split()[0] in OF_OPERATORS} - over == AT_HOME


@pytest.mark.parametrize("name", NEEDED)
def test_no_command_asks_redis_in_the_place_of_a_gateway(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the gateway is away that is said, and the fleet's Redis, which is set as well, is not asked."""
    port = closed_port()
    monkeypatch.setenv("TOOLFLEET_GATEWAY_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", "tfk_x")
    monkeypatch.setenv("TOOLFLEET_AGENTS", '{"production": {}}')
    with listening_socket("127.0.0.1", 0) as redis:
        redis.listen()
        monkeypatch.setenv("TOOLFLEET_REDIS_URL", f"redis://127.0.0.1:{redis.getsockname()[1]}")
        ended = run(*name.split(), *NEEDED[name])
        redis.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            redis.accept()

    assert (ended.code, ended.out, ended.err) == (2, "", f"cannot connect to 127.0.0.1:{port}\n")


@pytest.mark.parametrize(
    ("where", "kept", "variable", "sent"),
    [
        (("--host", "127.0.0.1", "--port", "8080"), "tfk_kept", "", "tfk_kept"),
        (("--port", "8080"), "tfk_kept\n", "", "tfk_kept"),
        (("--url", "http://localhost:8080"), "tfk_kept", "", "tfk_kept"),
        (("--host", "::1"), "tfk_kept", "", "tfk_kept"),
        (("--host", "127.0.0.1"), "tfk_kept", "tfk_said", "tfk_said"),
        (("--host", "127.0.0.1"), None, "", ""),
        (("--host", "192.0.2.1"), "tfk_kept", "", ""),
        (("--url", "http://127.0.0.1.example:8080"), "tfk_kept", "", ""),
        (("--url", "http://127.0.0.1@192.0.2.1:8080"), "tfk_kept", "", ""),
    ],
)
def test_the_key_of_the_folder_is_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: tuple[str, ...], kept: str | None, variable: str, sent: str
) -> None:
    """It lies here or in a folder above, as `toolfleet up` keeps it; one that is set counts first."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / ".toolfleet").mkdir()
    if kept is not None:
        (tmp_path / ".toolfleet" / "gateway-key").write_text(kept)
    monkeypatch.chdir(below)
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", variable)
    said = dict(zip(where[::2], where[1::2], strict=True))
    found = gateway_of(said.get("--url"), said.get("--host"), int(said["--port"]) if "--port" in said else None)

    assert found is not None
    assert found.key == sent
