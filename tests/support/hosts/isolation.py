"""Whether this machine can isolate a process as hosts do."""

import shutil
import subprocess

from support.waiting import PATIENCE_SECONDS


def can_isolate() -> bool:
    """Whether bubblewrap is here, and the kernel lets this user make namespaces."""
    tried = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return (
        shutil.which("bwrap") is not None
        and subprocess.run(tried, check=False, timeout=PATIENCE_SECONDS).returncode == 0
    )
