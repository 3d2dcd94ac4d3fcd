"""Writes what a command prints into files, of which the beginning and the latest are kept."""

import contextlib
from pathlib import Path

PIECES = 8  # of a log; the first stays, of the others the oldest goes


class Log:
    """What the command prints: the beginning and the latest of it, in at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._piece_bytes = max(1, limit // PIECES)
        self.position = 0
        """Bytes that were printed so far."""
        self._room = 0
        self._names: list[Path] = []
        folder.mkdir(exist_ok=True)

    def add(self, data: bytes) -> None:
        """Write what was printed next."""
        while data:
            if self._room == 0:
                self._begin_piece()
            part, data = data[: self._room], data[self._room :]
            # A full disk must not end the command; the log has a hole then.
            with contextlib.suppress(OSError), self._names[-1].open("ab") as piece:
                piece.write(part)
            self.position += len(part)
            self._room -= len(part)

    def _begin_piece(self) -> None:
        self._names.append(self._folder / f"{self.position:015d}")
        self._room = self._piece_bytes
        if len(self._names) > PIECES:
            self._names.pop(1).unlink(missing_ok=True)
