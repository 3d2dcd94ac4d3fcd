"""A process of its own that saves a note and kills itself in the middle: `python note_saver.py DATABASE STEP`.

`STEP`: `indexing`, before the note's words are indexed, or `committing`, when all is written and nothing is settled.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from modules.files import FileSettings
from modules.files.database import Database
from modules.knowledge.index import SQLiteIndex
from modules.knowledge.notes import Notes
from modules.knowledge.tables import METADATA

STEPS = ("indexing", "committing")


def main(database_url: str, step: str) -> None:
    settings = FileSettings.model_validate({"database_url": database_url}, by_name=True)
    notes = Notes(Database(settings, tables=METADATA, what="notes"), max_notes=10)
    SQLiteIndex.write = _dying(SQLiteIndex.write, first=step == "indexing")  # type: ignore[method-assign]
    notes.save("ada", "owls", "seven of them", [])
    raise AssertionError("it lives")


def _dying(write: Callable[..., None], *, first: bool) -> Callable[..., None]:
    def die(*arguments: Any) -> None:
        if not first:
            write(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return die


if __name__ == "__main__":
    main(*sys.argv[1:])
