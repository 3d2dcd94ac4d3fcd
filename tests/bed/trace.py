"""What happens in the bed, in its order: the same of two runs of one seed. On demand in a file, to find where two runs part."""

import zlib
from pathlib import Path
from typing import TextIO

from bed import clock

_digest = 0
_events = 0
_file: TextIO | None = None


def write_to(path: Path) -> None:
    """Write every event to a file from now on."""
    global _file  # noqa: PLW0603 - there is one trace
    _file = path.open("w")


def note(what: str, data: bytes = b"") -> None:
    """Note an event at the present time, and the data that was written. The file shows both, the digest a checksum of the data."""
    global _digest, _events  # noqa: PLW0603 - as above
    line = f"{clock.passed():.6f} {what}\n"
    _digest = zlib.crc32(line.encode(), _digest)
    _events += 1
    if _file is not None:
        _file.write(f"{line[:-1]} {data!r}\n" if data else line)


def digest() -> str:
    """Return what stands for all events so far."""
    return f"{_events}-{_digest:08x}"
