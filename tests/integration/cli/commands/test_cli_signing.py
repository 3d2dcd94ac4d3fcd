"""The signing key and the command: what derives from it is printed when asked for, and the key itself never."""

import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from support.programs.closed_port import closed_port
from support.up import toolfleet
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.programs import beat_program, flower_program, worker_program
from toolfleet_registry.directory.announcements import announce_key
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages.signing import module_key

KEY = "a secret of more than thirty-two characters"
SIGNED = {"TOOLFLEET_SIGNING_KEY": KEY, "TOOLFLEET_MODULE_SERVICES": '{"owls": "http://owls.test"}'}


@pytest.fixture
def settings() -> Settings:
    return Settings(signing_key=KEY, redis_url="redis://127.0.0.1:1/0")


def test_modules_key_prints_a_modules_key_and_nothing_else(elsewhere: Path) -> None:
    """So that it can be put into a variable."""
    ended = toolfleet("modules", "key", "owls", cwd=elsewhere, env=SIGNED)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{module_key(KEY, 'owls')}\n", "")


def test_modules_key_prints_what_its_hosts_announce_it_with(elsewhere: Path) -> None:
    """Another key than the module's own: whoever verifies callers announces nothing."""
    ended = toolfleet("modules", "key", "owls", "--announce", cwd=elsewhere, env=SIGNED)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{announce_key(KEY, 'owls')}\n", "")
    assert announce_key(KEY, "owls") != module_key(KEY, "owls")


def test_modules_key_notes_a_module_that_it_does_not_know(elsewhere: Path) -> None:
    """It may be one of another machine's settings, or a slip."""
    ended = toolfleet("modules", "key", "cats", cwd=elsewhere, env=SIGNED)

    assert (ended.returncode, ended.stdout) == (0, f"{module_key(KEY, 'cats')}\n")
    assert "no module 'cats'" in ended.stderr


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (["owls"], {}, "There is no signing key"),
        (["owls.count"], SIGNED, "may have letters"),
        (["owls"], {"TOOLFLEET_SIGNING_KEY": "too short"}, "TOOLFLEET_SIGNING_KEY"),
    ],
)
def test_modules_key_without_a_key_or_a_module_fails(
    elsewhere: Path, words: list[str], env: dict[str, str], told: str
) -> None:
    """One sentence, and the exit code of wrong settings; what is too short is not shown for that."""
    ended = toolfleet("modules", "key", *words, cwd=elsewhere, env=env)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "too short" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.fleet
@pytest.mark.parametrize("command", [["up"], ["worker"], ["beat"]])
@pytest.mark.parametrize("library", ["jwt", "cryptography"])
def test_a_key_without_its_libraries_is_one_sentence(elsewhere: Path, command: list[str], library: str) -> None:
    """Before anything is started."""
    (elsewhere / "sitecustomize.py").write_text(f"import sys\nsys.modules[{library!r}] = None\n")
    env = {**SIGNED, "PYTHONPATH": str(elsewhere), "TOOLFLEET_REDIS_URL": f"redis://127.0.0.1:{closed_port()}/0"}
    ended = toolfleet(*command, cwd=elsewhere, env=env)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "TOOLFLEET_SIGNING_KEY needs PyJWT and cryptography: pip install 'toolfleet[signing]'.\n"


def test_the_key_reaches_a_child_by_its_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the parent has it from; no command line has it, which every user of the machine can read."""
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)

    assert load_settings().signing_key == KEY
    for program in (worker_program("fast", settings), beat_program(settings), flower_program(settings, 5555)):
        assert KEY not in " ".join(map(str, program.argv))


def test_nothing_that_is_printed_holds_the_key(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the settings in a log line, nor an app's configuration, which `inspect conf` shows."""
    app = make_app(settings)
    structlog.get_logger().warning("x", settings=settings, app=app)
    shown = [repr(settings), str(settings), repr(app), str(app.conf), app.conf.humanize(), str(app.conf.table())]

    assert all(KEY not in text for text in (*shown, *capsys.readouterr()))


def test_without_a_key_no_library_for_signing_is_loaded() -> None:
    """What takes a fifth of a second is for those who sign."""
    look = "import sys, toolfleet, toolfleet_tasks.messages.signing as s; s.Seal(None); sys.exit('jwt' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", look], check=False, timeout=60).returncode == 0
