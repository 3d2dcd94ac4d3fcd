"""Puts the fleet together: the `toolfleet` command, which loads no worker library for a client's command, and only what each needs.

PYTEST_DONT_REWRITE: pytest would otherwise warn of modules that a plugin's package has imported already.
"""

import gc
import sys


def main() -> None:
    """Run the command. Ctrl-C ends it with exit code 130, also while any of it is still being loaded."""
    gc.disable()  # nothing that is loaded goes away again: looking through it takes a tenth of the time
    try:
        from toolfleet_cli.check import quick_check

        if (code := quick_check(sys.argv[1:])) is not None:
            raise SystemExit(code)
        from toolfleet_cli.app import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
