"""A log's new lines, through its end, its growth and its replacement."""

from pathlib import Path

from toolfleet_cli.commands.logs import LogTail


def test_only_new_lines_are_read_and_whole_ones(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\n")
    tail = LogTail(log)
    assert tail.read() == []

    with log.open("ab") as file:
        file.write(b"one\ntw")
    assert tail.read() == ["one"]
    with log.open("ab") as file:
        file.write(b"o\r\n\xff\n")
    assert tail.read() == ["two", "\N{REPLACEMENT CHARACTER}"]
    assert tail.read() == []


def test_the_last_lines_come_first_if_wanted(tmp_path: Path) -> None:
    """So many, or all that there are, also of a log that is larger than one look."""
    log = tmp_path / "a.log"
    log.write_text("".join(f"{number:0100d}\n" for number in range(2_000)))

    assert [int(line) for line in LogTail(log, lines=3).read()] == [1997, 1998, 1999]
    assert [int(line) for line in LogTail(log, lines=1_000).read()] == list(range(1_000, 2_000))
    assert len(LogTail(log, lines=5_000).read()) == 2_000
    log.write_text("no end")
    tail = LogTail(log, lines=1)
    assert (tail.read(), tail.rest(), tail.rest()) == ([], ["no end"], [])


def test_a_new_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    """As when a log has grown too large, and when it was emptied; and one that was not there yet."""
    log = tmp_path / "a.log"
    tail = LogTail(log, lines=10)
    assert tail.read() == []
    log.write_text("first\n")
    assert tail.read() == ["first"]
    log.rename(tmp_path / "a.log.1")
    log.write_text("second\nthird\n")
    assert tail.read() == ["second", "third"]
    log.write_text("x\n")
    assert tail.read() == ["x"]


def test_a_line_without_an_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    tail = LogTail(log)
    log.write_bytes(b"x" * 100_000)

    assert [len(line) for line in tail.read()] == [100_000]
