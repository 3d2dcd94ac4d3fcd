"""`knowledge` over real HTTP."""

import asyncio

import pytest

from support.modules.example_modules import Module


async def test_a_note_is_found_by_its_words(knowledge: Module) -> None:
    """By those of its text, its title and its tags; without regard to capitals and accents, and by a word's beginning."""
    text = "Das Passwort steht unter der Café-Tasse."
    saved = await knowledge("save", user_id="finder", title="Wifi at home", text=text, tags=["Net", "net"])
    assert saved["result"] == {"title": "Wifi at home", "created": True}

    for query in ("CAFE", "wifi", "NET", "passw", "nothing of this but tasse"):
        (found,) = (await knowledge("search", user_id="finder", query=query))["result"]["results"]
        assert (found["title"], found["tags"], found["excerpt"]) == ("Wifi at home", ["net"], text)
    assert (await knowledge("search", user_id="finder", query="unrelated"))["result"] == {"results": []}


async def test_the_best_note_comes_first(knowledge: Module) -> None:
    """What a title says counts for more than what a text does; and a bound on results is kept."""
    await knowledge("save", user_id="best", title="Trees", text="An owl lives there.")
    await knowledge("save", user_id="best", title="Owl", text="It hoots.")
    found = (await knowledge("search", user_id="best", query="which owl"))["result"]["results"]
    assert [note["title"] for note in found] == ["Owl", "Trees"]

    one = await knowledge("search", user_id="best", query="owl", max_results=1)
    assert [note["title"] for note in one["result"]["results"]] == ["Owl"]


async def test_an_excerpt_shows_where_the_words_are(knowledge: Module) -> None:
    """Of a long text some 300 characters around the first of them."""
    text = f"{'dull ' * 500}an owl, at last{' dull' * 500}"
    await knowledge("save", user_id="excerpt", title="long", text=text)
    (found,) = (await knowledge("search", user_id="excerpt", query="owls owl"))["result"]["results"]
    assert "an owl, at last" in found["excerpt"]
    assert found["excerpt"].startswith("…")
    assert found["excerpt"].endswith("…")
    assert len(found["excerpt"]) < 310


async def test_saving_a_title_again_replaces_its_note(knowledge: Module) -> None:
    """The old words are not found any more; repeating it changes nothing."""
    await knowledge("save", user_id="again", title="owls", text="seven", tags=["old"])
    for _ in range(2):
        reply = await knowledge("save", user_id="again", title="owls", text="eight")
        assert reply["result"] == {"title": "owls", "created": False}

    assert (await knowledge("search", user_id="again", query="seven old"))["result"]["results"] == []
    note = (await knowledge("get", user_id="again", title="owls"))["result"]
    assert (note["text"], note["tags"]) == ("eight", [])


async def test_users_do_not_see_each_other(knowledge: Module) -> None:
    """Another's notes are not found, not listed, not read and not deleted, whatever the users are called."""
    await knowledge("save", user_id="ada", title="diary", text="secret owls")
    for other in ("ad", "Ada", "ada x", "ada%", "../ada"):
        assert (await knowledge("search", user_id=other, query="secret owls diary ada"))["result"]["results"] == []
        assert (await knowledge("list", user_id=other))["result"] == {"notes": [], "total": 0}
        assert "There is no note 'diary'" in (await knowledge("get", user_id=other, title="diary"))["error"]
        assert not (await knowledge("delete", user_id=other, title="diary"))["result"]["deleted"]
    assert (await knowledge("get", user_id="ada", title="diary"))["success"]


async def test_a_call_without_a_user_is_refused(knowledge: Module) -> None:
    """Nobody's notes are nobody's."""
    reply = await knowledge("list")
    assert reply["error"] == "Notes belong to a user, and this call has no user_id."


@pytest.mark.parametrize("query", ["", '"', "*", "— …", "\u0301"])
async def test_a_query_without_a_word_says_so(knowledge: Module, query: str) -> None:
    """The model is told; nothing is found by nothing."""
    reply = await knowledge("search", user_id="syntax", query=query)
    assert reply["error"] == "The query has no word to look for."


async def test_notes_are_listed_in_parts(knowledge: Module) -> None:
    """By title, without texts; `next` is where the next part begins, and a tag chooses some."""
    for number in range(5):
        tags = ["even"] if number % 2 == 0 else []
        await knowledge("save", user_id="lister", title=f"note {number}", text="x", tags=tags)
    first = (await knowledge("list", user_id="lister", max_results=3))["result"]
    rest = (await knowledge("list", user_id="lister", max_results=3, after=first["next"]))["result"]
    even = (await knowledge("list", user_id="lister", tag=" EVEN"))["result"]

    assert [note["title"] for note in first["notes"] + rest["notes"]] == [f"note {n}" for n in range(5)]
    assert all(note.keys() == {"title", "tags", "updated"} for note in first["notes"])
    assert (first["total"], "next" in rest) == (5, False)
    assert [note["title"] for note in even["notes"]] == ["note 0", "note 2", "note 4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"title": " \t"}, "is no title"),
        ({"title": "two\nlines"}, "is no title"),
        ({"title": "x" * 201}, "200 characters"),
        ({"text": "x" * 20_001}, "The text has 20001 characters; 20000 are allowed."),
        ({"text": ""}, "text"),
        ({"text": "a\0b"}, "cannot be stored"),
        ({"tags": ["\n"]}, "is no tag"),
        ({"tags": ["x"] * 11}, "tags"),
    ],
)
async def test_what_cannot_be_a_note_is_refused(knowledge: Module, arguments: dict[str, object], words: str) -> None:
    """In one sentence, and nothing is saved."""
    reply = await knowledge("save", user_id="wrong", **{"title": "t", "text": "x", **arguments})
    assert not reply["success"]
    assert words in reply["error"]
    assert (await knowledge("list", user_id="wrong"))["result"]["total"] == 0


async def test_calls_at_the_same_time_do_not_disturb_each_other(knowledge: Module) -> None:
    """Of one title saved by many, one is left, and one of them has made it; deleting it twice does nothing more."""
    same = await asyncio.gather(*(knowledge("save", user_id="many", title="same", text=str(n)) for n in range(8)))
    listed = (await knowledge("list", user_id="many"))["result"]
    deleted = [(await knowledge("delete", user_id="many", title="same"))["result"]["deleted"] for _ in range(2)]

    assert [note["title"] for note in listed["notes"]] == ["same"]
    assert [reply["result"]["created"] for reply in same].count(True) == 1
    assert deleted == [True, False]
