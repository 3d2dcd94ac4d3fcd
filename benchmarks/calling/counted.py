"""Counts what this process does, and tells its counts to anybody who connects to `$BENCH_COUNTS/<pid>`.

`benchmarks.counters` has each process of a system import it before anything else. It counts the Python functions that are entered
and resumed and the C functions that Python calls (by `sys.monitoring`), unless `$BENCH_COUNT_CALLS` is empty.
"""

import ctypes
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

_TOOL = 4  # of sys.monitoring's six: neither a debugger's nor a profiler's

_Counts = dict[CodeType, int]

_entered: _Counts = {}
_resumed: _Counts = {}
_called: _Counts = {}  # by the function that calls


def _counting(counts: _Counts) -> Callable[..., None]:
    def count(code: CodeType, *_: object) -> None:
        counts[code] = counts.get(code, 0) + 1

    return count


def _count_calls() -> None:
    monitoring: Any = vars(sys)["monitoring"]  # new in Python 3.12
    events = monitoring.events
    monitoring.use_tool_id(_TOOL, "toolfleet benchmarks")
    monitoring.register_callback(_TOOL, events.PY_START, _counting(_entered))
    for event in (events.PY_RESUME, events.PY_THROW):
        monitoring.register_callback(_TOOL, event, _counting(_resumed))
    for event in (events.C_RETURN, events.C_RAISE):
        monitoring.register_callback(_TOOL, event, _counting(_called))
    monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME | events.PY_THROW | events.CALL)


def _snapshot() -> dict[str, Any]:
    entered = _of_others(_entered)
    by_name: dict[str, int] = {}  # a Counter's own functions would be counted
    for code, count in entered.items():
        by_name[_name(code)] = by_name.get(_name(code), 0) + count
    return {
        "entered": by_name,
        "bytecode": {_name(code): len(code.co_code) for code in entered},
        "resumed": sum(_of_others(_resumed).values()),
        "called": sum(_of_others(_called).values()),
        "modules": len(sys.modules),
        **_allocated(),
    }


def _of_others(counts: _Counts) -> _Counts:
    return {code: count for code, count in list(counts.items()) if code.co_filename != __file__}


def _name(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname}"


def _allocated() -> dict[str, int]:
    """Return the counts of the preloaded `malloc`; empty without one."""
    if not os.environ.get("LD_PRELOAD"):
        return {}
    library = ctypes.CDLL(None)
    names = ("allocations", "allocated_bytes")
    return {name: ctypes.c_ulong.in_dll(library, f"bench_{name}").value for name in names}


def _serve(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        while True:
            asker, _ = listener.accept()
            with asker:
                asker.sendall(json.dumps(_snapshot()).encode())


def _start() -> None:
    path = Path(os.environ["BENCH_COUNTS"]) / str(os.getpid())
    threading.Thread(target=_serve, args=(path,), name="counts", daemon=True).start()


os.register_at_fork(after_in_child=_start)
_start()
if os.environ.get("BENCH_COUNT_CALLS"):
    _count_calls()
