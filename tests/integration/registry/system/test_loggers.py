"""When a command configures its log: structlog takes longer to load than most commands take."""

import subprocess
import sys

import pytest

BEGIN = """
import sys
from toolfleet_registry.system.loggers import configure_before_first_line, get_logger
configure = lambda: print("configured", "structlog" in sys.modules)
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        # Before the first line, once, and not before that.
        (
            (
                "configure_before_first_line(configure); print(*{'structlog'} & {*sys.modules})\n"
                "get_logger('a').info('one'); get_logger('b').info('two')"
            ),
            "\nconfigured True\n",
        ),
        # Never, where nothing is logged.
        ("configure_before_first_line(configure)", ""),
        # A process that has configured it by then, as a gateway does, keeps what it has.
        (
            (
                "configure_before_first_line(configure)\n"
                "import structlog; structlog.configure(processors=[lambda *_: print('own') or '']); get_logger('a').info('one')"
            ),
            "own\n\n",
        ),
        # At once, where it is loaded already.
        ("import structlog; configure_before_first_line(configure); print('then')", "configured True\nthen\n"),
    ],
)
def test_structlog_is_configured_with_the_first_line(code: str, said: str) -> None:
    """What a program has configured itself stays, and what logs nothing loads nothing."""
    ended = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True)

    assert ended.stdout == said


LINES = """
import logging, sys
from toolfleet_registry.system.loggers import get_logger
logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
log = get_logger("owls")
log.info("dropped")
log.warning("seen", owls=3, name="Ada", error=None)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed", call_id="c-1")
print("structlog" in sys.modules)
"""


def test_without_structlog_lines_are_as_with_it() -> None:
    """A program that has not loaded it pays nothing for it, and reads the same."""
    run = [[sys.executable, "-c", code] for code in (LINES, LINES.replace("logging, sys", "logging, structlog, sys"))]
    plain, known = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in run)

    assert plain.splitlines()[:1] == ["WARNING owls event='seen' owls=3 name='Ada' error=None"]
    assert "ERROR owls event='failed' call_id='c-1' exception='Traceback (most recent call last):" in plain
    assert (plain.splitlines()[-1], known.splitlines()[-1]) == ("False", "True")
    assert plain.splitlines()[:-1] == known.splitlines()[:-1]
