"""What programs are written in, and how each kind is started. The launcher imports it too: it imports next to nothing."""

import os
import sys
from typing import Literal

Language = Literal["python", "shell"]

SHELL = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
PROGRAM_FILES: dict[Language, str] = {"python": "program.py", "shell": "program.sh"}
"""What a program's own file is called, beside its working folder."""


def start_words(language: Language, folder: str) -> list[str]:
    """The command that runs the program in `folder`. A shell that is given a file reads no profile."""
    interpreter = [SHELL] if language == "shell" else [sys.executable, "-s", "-B", "-u", "-X", "utf8"]
    return [*interpreter, f"{folder}/{PROGRAM_FILES[language]}"]
