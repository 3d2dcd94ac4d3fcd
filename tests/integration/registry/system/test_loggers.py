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
