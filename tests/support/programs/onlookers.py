"""What a program of the same user, without any other rights, reads of a process."""

import os
import subprocess
import sys

from support.modules.example_modules import EXAMPLES
from support.waiting import PATIENCE_SECONDS

# Root reads everything by its capabilities; without them it is a user as any other.
WITHOUT_RIGHTS = "from modules.sandboxes import linux; linux.drop_capabilities(); import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
_READ = """
import os, sys
for name in ("environ", "mem", "maps", "fd/0", "cwd"):
    try:
        path = f"/proc/{sys.argv[1]}/{name}"
        os.readlink(path) if name == "cwd" else open(path, "rb").close()
        print(name)
    except OSError:
        pass
"""


def read_by_its_user(pid: int) -> set[str]:
    """Of its environment, its memory, its open files and its folder those that can be read, by their names in /proc."""
    reader = [sys.executable, "-c", WITHOUT_RIGHTS, "-c", _READ, str(pid)]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    read = subprocess.run(reader, check=True, capture_output=True, text=True, env=env, timeout=2 * PATIENCE_SECONDS)
    return set(read.stdout.split())
