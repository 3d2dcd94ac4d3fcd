"""`toolfleet capacity`: a table, JSON, and wrong inputs; it asks no fleet."""

import json

from support.command import Run


def test_it_says_how_many_of_each(run: Run) -> None:
    shown = run("capacity", "--rate", "300", "--latency", "4")
    told = json.loads(run("capacity", "--rate", "300", "--latency", "4", "--json").out)

    assert shown.code == 0
    assert "worker processes" in shown.out
    assert "14,000 calls a second" in shown.err
    assert (told["workers"], told["short_of"], told["measured_by"]) == (3, "slots", "make bench")
