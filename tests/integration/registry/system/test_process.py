"""What a process has once, where there is more than one: its name, and ids that no other process gives out."""

import os
import socket
from collections.abc import Callable
from uuid import UUID

from toolfleet_registry.system import randomness
from toolfleet_registry.system.process import Process, this_process


def said_by_a_fork(say: Callable[[], str]) -> tuple[int, str]:
    """A child's process id, and what it says."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, say().encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode()
    for end in (reader, writer):
        os.close(end)
    return child, said


def test_a_fork_has_its_own_name() -> None:
    """Host and process id, unless it was given one; the parent's is known by then."""
    host = socket.gethostname()
    assert this_process().name == f"{host}:{os.getpid()}"

    child, said = said_by_a_fork(lambda: f"{this_process().name} {Process('one:1').name}")

    assert said == f"{host}:{child} one:1"
    assert this_process().name == f"{host}:{os.getpid()}"


def test_a_fork_gives_out_no_id_of_its_parent() -> None:
    """Ids are drawn many at a time: what is left of a block is the parent's alone."""
    ids = [randomness.uuid4_text() for _ in range(3)]
    _, said = said_by_a_fork(lambda: " ".join(randomness.uuid4_text() for _ in range(100)))
    ids += [randomness.uuid4_text() for _ in range(100)]

    theirs = said.split()
    assert len({*ids, *theirs}) == len(ids) + len(theirs)
    assert all(str(UUID(one)) == one and UUID(one).version == 4 for one in (*ids, *theirs))
