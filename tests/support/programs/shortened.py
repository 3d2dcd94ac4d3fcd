"""Runs a program of the product with other constants: what a test waits for comes sooner.

`python -m support.programs.shortened '{"package.module.NAME": 3}' PROGRAM ARGUMENTS` is `python -m PROGRAM ARGUMENTS` with them.
"""

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

NAME = "support.programs.shortened"
TESTS = Path(__file__).parents[2]


def shortened(command: Sequence[str], constants: Mapping[str, float]) -> list[str]:
    """Return the command for the program of `python -m PROGRAM …` with these constants, by their dotted names.

    Its `PYTHONPATH` must lead to the tests.
    """
    python, option, *program = command
    return [python, option, NAME, json.dumps(dict(constants)), *program]


def _run() -> None:
    constants, program = json.loads(sys.argv[1]), sys.argv[2]
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        target = import_module(module)
        assert hasattr(target, constant), name
        setattr(target, constant, value)
    del sys.argv[:2]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
