"""A process of its own that saves files: `python file_saver.py SETTINGS USER NAME CONTENT COUNT STEP`.

`STEP`: where it kills itself in the middle of the first save, or `none`; `drafting`: while it writes much. It says `ready` and waits for a line first.
"""

import asyncio
import os
import signal
import sys
import threading
from typing import NoReturn

from modules.files import FilePipeline, FileSettings, open_pipeline

STEPS = ("announcing", "writing", "recording", "deleting", "forgetting")
"""What is about to be done when it dies."""


async def main(settings: str, user_id: str, name: str, content: str, count: str, step: str) -> None:
    async with open_pipeline(FileSettings.model_validate_json(settings, by_name=True)) as files:
        _prepare(files, step)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        if step == "drafting":
            threading.Thread(target=_die_beside_a_draft, args=[files], daemon=True).start()
            await files.save(user_id, name, bytes(200 * 2**20), "upload")
        for n in range(int(count)):
            await files.save(user_id, name, f"{content}{n}".encode(), "upload")


def _prepare(files: FilePipeline, step: str) -> None:
    places = {
        "announcing": (files.records, "announce"),
        "writing": (files.store, "put"),
        "recording": (files.records, "settle"),
        "deleting": (files.store, "delete"),
        "forgetting": (files.records, "forget"),
    }
    if step in places:
        setattr(*places[step], _die)


def _die_beside_a_draft(files: FilePipeline) -> None:
    while not [*FileSettings.model_validate_json(sys.argv[1], by_name=True).root.rglob("*#*")]:
        pass
    _die(files)


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
