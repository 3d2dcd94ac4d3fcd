"""Notes in each kind of database, and when a process dies or the database is away."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from modules.files import FileSettings, FilesUnavailable
from modules.files.database import Database
from modules.knowledge.manifest import module_for
from modules.knowledge.notes import Notes
from modules.knowledge.settings import KnowledgeSettings
from modules.knowledge.tables import METADATA
from modules.knowledge.words import wanted_words
from support.modules.example_modules import EXAMPLES
from support.programs import note_saver
from support.servers.postgres import PostgresServer
from toolfleet.sdk import ToolError


def settings_of(database_url: str) -> FileSettings:
    return FileSettings.model_validate({"database_url": database_url}, by_name=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'notes.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


@pytest.fixture
def notes(database_url: str) -> Generator[Notes]:
    with closing(Database(settings_of(database_url), tables=METADATA, what="notes")) as database:
        yield Notes(database, max_notes=3)


def titles(notes: Notes, query: str, owner: str = "ada") -> list[str]:
    return [note.title for note in notes.search(owner, wanted_words(query), 5)]


def test_each_database_finds_the_same(notes: Notes) -> None:
    """Words, beginnings of words, none of others' notes; the title counts for more; the old words go with the old text."""
    notes.save("ada", "Trees", "An owl lives in the Café, at 5e3 owls@example.org, 日本語.", ["outside"])
    notes.save("ada", "Owl", "It hoots.", [])
    notes.save("bob", "Owl", "Bob's owl.", [])

    assert titles(notes, "owl") == ["Owl", "Trees"]
    assert (
        titles(notes, "CAF") == titles(notes, "5e3") == titles(notes, "本語") == titles(notes, "outside") == ["Trees"]
    )
    assert titles(notes, "example") == ["Trees"]
    assert titles(notes, "ow") == []
    assert titles(notes, "it hoots", "bob") == []
    assert notes.save("ada", "Owl", "It is silent.", []) is False
    assert titles(notes, "hoots") == []
    assert notes.remove("ada", "Trees")
    assert titles(notes, "owl outside") == ["Owl"]


QUERIES = [
    *("owl' | 'x", "owl & !", 'owl" AND', "owl:*", "owl\\ <->", "NEAR(owl", "owl %s :x ?"),
    *('owl" OR "x', "title:owl NOT", "owl*) OR (owner:ada", "owl; DROP TABLE knowledge_notes", "(((owl"),
    *("-owl ^ { } [ ] % _", "owl\u0000\u0301", " ".join(["owl"] * 200)),
]


def test_no_database_takes_words_for_its_own_language(notes: Notes) -> None:
    """A query of a model's is never an error of SQL or of full text search."""
    notes.save("ada", "Owl", "It hoots.", [])
    assert [query for query in QUERIES if titles(notes, query) != ["Owl"]] == []


def test_a_user_has_so_many_notes(notes: Notes) -> None:
    """One more is refused; one of a title that is there is not, and neither is another user's."""
    for title in ("a", "b", "c"):
        notes.save("ada", title, "x", [])
    with pytest.raises(ToolError, match="There are 3 notes, the most allowed") as caught:
        notes.save("ada", "d", "x", [])
    notes.save("ada", "c", "y", [])
    notes.save("bob", "d", "x", [])

    assert caught.value.effect_state == "none"
    assert [note.title for note in notes.of("ada")] == ["a", "b", "c"]


@pytest.mark.parametrize("step", note_saver.STEPS)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_process_that_is_killed_leaves_a_whole_note(tmp_path: Path, step: str, is_there: bool) -> None:
    """The old one or none, with its words; a repeat of the save finds nothing in its way."""
    url = f"sqlite:///{tmp_path / 'notes.db'}"
    with closing(Database(settings_of(url), tables=METADATA, what="notes")) as database:
        notes = Notes(database, max_notes=1)
        if is_there:
            notes.save("ada", "owls", "one", [])
        command = [sys.executable, str(note_saver.__file__), url, step]
        apart = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
        done = subprocess.run(command, check=False, env=apart, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr

        assert [note.title for note in notes.of("ada")] == (["owls"] if is_there else [])
        assert (titles(notes, "one"), titles(notes, "seven")) == ((["owls"] if is_there else []), [])
        assert notes.save("ada", "owls", "seven of them", []) is not is_there
        assert (titles(notes, "one"), titles(notes, "seven")) == ([], ["owls"])


async def test_a_repeat_of_a_call_is_answered_as_the_first(tmp_path: Path) -> None:
    """Under one call id a note is created once, and both are told so."""
    module = module_for(KnowledgeSettings(), settings_of(f"sqlite:///{tmp_path / 'notes.db'}"))
    note = {"title": "owls", "text": "seven"}
    async with module.client() as client:
        replies = [await client.send("save", note, user_id="ada", call_id="c1") for _ in range(2)]
    assert [reply.result for reply in replies] == [{"title": "owls", "created": True}] * 2


def test_a_database_that_is_away_is_one_clear_error(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within seconds, without its address; and there again, it goes on."""
    monkeypatch.setattr("modules.files.database._PATIENCE_SECONDS", 0.5)
    with closing(Database(settings_of(postgres.url), tables=METADATA, what="notes")) as database:
        notes = Notes(database, max_notes=3)
        with postgres.frozen(), pytest.raises(FilesUnavailable) as caught:
            notes.save("ada", "owls", "seven", [])
        assert str(caught.value) == "The database of notes does not answer; try again later."
        monkeypatch.undo()
        notes.save("ada", "owls", "seven", [])
        assert titles(notes, "seven") == ["owls"]
