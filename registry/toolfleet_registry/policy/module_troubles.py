"""Describes what is wrong with a module, with the same words in calls' errors, in commands and in the console."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

Why: TypeAlias = Literal["refused", "silent", "unresolved", "unready", "away", "failed"]

WORDS: Mapping[str, str] = {
    "refused": "Connection refused",  # to the letter: agents match on it
    "silent": "it does not accept connections",
    "unresolved": "host name not known",
    "unready": "it answers that it is not ready",
    "away": "no worker can connect to it",
    "failed": "it has failed too often",
}
"""Why a module is left alone; what a newer worker has noted and is not known here is `away`."""

TONES: Mapping[str, Literal["good", "odd"]] = {"ok": "good", "recovering": "odd", "failing": "odd", "stale": "odd"}
"""The tones of a module's states; all other states are bad."""


def words_for(why: str) -> str:
    """Return why a module is left alone, in words."""
    return WORDS.get(why, WORDS["away"])
