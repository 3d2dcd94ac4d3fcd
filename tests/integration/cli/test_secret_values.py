"""The values of a host's secrets: read from where the settings say, or refused in one sentence that shows none."""

from pathlib import Path

import pytest

from toolfleet_cli.hosting.host_server import read_secrets
from toolfleet_cli.hosting.hosts import fence_of
from toolfleet_registry.config.host_settings import FolderSpec, SecretSource
from toolfleet_registry.errors import SettingsError

VALUE = "planted-0123456789"


def printing(script: str) -> SecretSource:
    return SecretSource(command=("/bin/sh", "-c", script))


def test_a_value_comes_from_a_variable_a_file_or_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that the settings do not know is that of a variable; a line's end is no part of a value."""
    monkeypatch.setenv("OWN", VALUE + "own")
    monkeypatch.setenv("OTHER", VALUE + "other")
    (tmp_path / "token").write_text(VALUE + "file\n")
    sources = {
        "RENAMED": SecretSource(variable="OTHER"),
        "FILED": SecretSource(file=Path("token")),
        "PRINTED": printing(f'echo {VALUE}$(basename "$PWD")'),
    }

    read = read_secrets(["OWN", "RENAMED", "FILED", "PRINTED"], sources, folder=tmp_path)

    assert read.plain(read.names) == {
        "OWN": VALUE + "own",
        "RENAMED": VALUE + "other",
        "FILED": VALUE + "file",
        "PRINTED": VALUE + tmp_path.name,
    }


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "the variable TOKEN is not set"),
        (SecretSource(file=Path("missing")), "cannot be read from"),
        (SecretSource(command=("/no/such/program",)), "cannot be run: No such file"),
        (printing(f"echo {VALUE} >&2; exit 1"), "ended with 1"),
        (printing("echo short"), "less than 8 characters"),
        (printing("head -c 100000 /dev/zero | tr '\\0' x"), "more than 65536 bytes"),
        (printing(r"printf '\377\377\377\377\377\377\377\377\377'"), "no text in UTF-8"),
    ],
    ids=["no variable", "no file", "no program", "it fails", "too short", "too long", "no text"],
)
def test_what_is_no_secret_is_one_clear_error(tmp_path: Path, source: SecretSource | None, words: str) -> None:
    """It names the secret, and shows nothing of what was read."""
    with pytest.raises(SettingsError, match="secret TOKEN") as caught:
        read_secrets(["TOKEN"], {} if source is None else {"TOKEN": source}, folder=tmp_path)

    assert words in str(caught.value)
    assert VALUE not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_variable_that_holds_a_secret_is_given_to_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own name, or that of another: a host that would do so does not start."""
    monkeypatch.setenv("TOKEN", VALUE)
    spec = FolderSpec(folder=Path("owls"), variables=("TOKEN",), secrets=("GITHUB",))

    with pytest.raises(SettingsError, match="variable TOKEN holds a secret of 'owls'"):
        fence_of(spec, "owls", {"GITHUB": SecretSource(variable="TOKEN")})
    assert fence_of(spec, "owls", {"GITHUB": SecretSource(file=Path("token"))}).variables == {"TOKEN": VALUE}
