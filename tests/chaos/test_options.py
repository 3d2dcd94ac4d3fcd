"""What the options of `make chaos` make of its parts."""

import pytest

from chaos.__main__ import PARTS, amounts_of, options_of


def test_five_minutes_are_ten_for_all_parts_together() -> None:
    """The first ends within its five, and no part has more of anything a minute than in the long run."""
    long, short = options_of([]), options_of(["--minutes", "5"])
    rows = {name: (amounts_of(part, long), amounts_of(part, short)) for name, part in PARTS.items()}

    assert {name: few[3] for name, (_, few) in rows.items()} == {"calls": 300, "rest": 50, "mcp": 75, "approvals": 150}
    assert all([4 * each for each in few] == [*many] for many, few in rows.values())


def test_what_is_given_holds_for_each_part() -> None:
    """It need not fit the time."""
    chosen = options_of(["rest", "approvals", "--minutes", "0.1", "--calls", "7", "--faults", "3", "--seed", "2"])

    assert (chosen.parts, chosen.seed) == (["rest", "approvals"], 2)
    assert [amounts_of(PARTS[name], chosen)[:3] for name in chosen.parts] == [(7, 0, 3), (7, 0, 3)]


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By its name."""
    with pytest.raises(SystemExit):
        options_of(["queues"])

    assert "there is no part 'queues'" in capsys.readouterr().err
