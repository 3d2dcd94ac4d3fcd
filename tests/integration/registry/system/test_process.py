"""The name of a process, where there is more than one."""

import os
import socket

from toolfleet_registry.system.process import Process, this_process


def test_a_fork_has_its_own_name() -> None:
    """Host and process id, unless it was given one."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, f"{this_process().name} {Process('one:1').name}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    host = socket.gethostname()

    assert os.read(reader, 1000).decode() == f"{host}:{child} one:1"
    assert this_process().name == f"{host}:{os.getpid()}"
    for end in (reader, writer):
        os.close(end)
