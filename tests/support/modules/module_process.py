"""The module of the owls in a process of its own: for bursts, in which nobody's loop shall wait for another's thread."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import Popen

from support.module_server import ModuleServer
from support.processes import next_line, python_program
from support.waiting import PATIENCE_SECONDS
from support.worker_process import TESTS

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from support.module_server import serve
from support.owls import make_module

with serve(make_module()) as module:
    print(module.url, flush=True)
    for method in sys.stdin:
        print(json.dumps(module.call_ids(method.strip())), flush=True)
"""


@dataclass
class ModuleProcess:
    """Where it is, and what it has done."""

    server: ModuleServer
    _process: Popen[str]

    def executed(self, method: str) -> list[str]:
        """The ids under which one of its tools was called, one for each request."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{method}\n")
        self._process.stdin.flush()
        ids: list[str] = json.loads(next_line(self._process))
        return ids


@contextmanager
def module_process() -> Generator[ModuleProcess]:
    """The owls, until the end of the block."""
    with python_program(_PROGRAM, TESTS, stdin=True) as process:
        server = ModuleServer("owls", url=next_line(process))
        yield ModuleProcess(server, process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_SECONDS)
