"""The signing key and the command: what derives from it is printed when asked for, and the key itself never."""

import sys

import pytest
import structlog

from support.command import Run
from support.programs.closed_port import closed_port
from toolfleet_cli.local.environment import environment_of
from toolfleet_cli.local.programs import beat_program, flower_program, worker_program
from toolfleet_registry.directory.hosts import announce_key
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.app import make_app
from toolfleet_tasks.messages.signing import module_key

KEY = "a secret of more than thirty-two characters"
SIGNED = {"TOOLFLEET_SIGNING_KEY": KEY, "TOOLFLEET_MODULE_SERVICES": '{"owls": "http://owls.test"}'}


@pytest.fixture
def settings() -> Settings:
    return Settings(signing_key=KEY, redis_url="redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("words", "key", "noted"),
    [
        (["owls"], module_key(KEY, "owls"), ""),
        (["owls", "--announce"], announce_key(KEY, "owls"), ""),
        (["cats"], module_key(KEY, "cats"), "no module 'cats'"),
    ],
    ids=["its own", "its hosts'", "of a module that is not known here"],
)
def test_modules_key_prints_a_key_and_nothing_else(run: Run, words: list[str], key: str, noted: str) -> None:
    """So that it can be put into a variable; an unknown module may be one of another machine's settings, or a slip."""
    ended = run("modules", "key", *words, env=SIGNED)

    assert (ended.code, ended.out) == (0, f"{key}\n")
    assert (noted in ended.err, bool(ended.err)) == (True, bool(noted))
    assert announce_key(KEY, "owls") != module_key(KEY, "owls")


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (["owls"], {}, "There is no signing key"),
        (["owls.count"], SIGNED, "may have letters"),
        (["owls"], {"TOOLFLEET_SIGNING_KEY": "too short"}, "TOOLFLEET_SIGNING_KEY"),
    ],
)
def test_modules_key_without_a_key_or_a_module_fails(
    run: Run, words: list[str], env: dict[str, str], told: str
) -> None:
    """One sentence, and the exit code of wrong settings; what is too short is not shown for that."""
    ended = run("modules", "key", *words, env=env)

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert (told in ended.err, "too short" in ended.err) == (True, False)


@pytest.mark.parametrize("command", ["up", "worker", "beat"])
@pytest.mark.parametrize("library", ["jwt", "cryptography"])
def test_a_key_without_its_libraries_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, library: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    ended = run(command, env={**SIGNED, "TOOLFLEET_REDIS_URL": f"redis://127.0.0.1:{closed_port()}/0"})

    said = "TOOLFLEET_SIGNING_KEY needs PyJWT and cryptography: pip install 'toolfleet[signing]'.\n"
    assert (ended.code, ended.out, ended.err) == (2, "", said)


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
