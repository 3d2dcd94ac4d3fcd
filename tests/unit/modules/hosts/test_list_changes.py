"""When a server's tools are listed again."""

from toolfleet_modules.hosts.mcp.tool_list import ListChanges


def test_a_server_whose_list_never_stays_is_listed_less_and_less_often() -> None:
    """Some changes in a row are usual; then the pause doubles up to a bound, until a list stays as it was."""
    changes = ListChanges(60.0)
    pauses = list[float]()
    for _ in range(12):
        changes.note_list(is_new=True)
        pauses.append(changes.shortest_pause)

    assert pauses[:5] == [1.0, 1.0, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    changes.note_list(is_new=False)
    assert changes.shortest_pause == 1.0
