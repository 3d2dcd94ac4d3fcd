"""Holds named secrets of a host, fills them in where they are sent, and hides them in all output, also of other processes."""

import base64
import contextlib
import html
import json
import os
import re
import threading
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

_SHORTEST = 8  # characters: what is shorter stands in many texts by chance, and could not be hidden
_KEPT = 4  # values of one name that pass
_MOST_LAYERS = 8  # encodings around each other
_ESCAPE = re.compile(
    r"""(?:%[0-9A-Fa-f]{2})+|(?:\\u[0-9A-Fa-f]{4})+|(?:\\x[0-9A-Fa-f]{2})+|\\["'\\/bfnrt]"""
    r"""|&(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"""
)
_ALNUM = "(?:3[0-9]|4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa]|25|5[Cc])"  # and % and \\, which begin other escapes
_ESCAPED = (
    rf"(?:%{_ALNUM}|\\(?:u00|x){_ALNUM}|(?:&|%26|\\u0026|\\x26)(?:amp;)*(?:#|%23)(?!(?:34|39|x22|x27|8\d{{3}});))"
)
_HINT = re.compile(rf"{_ESCAPED}[\s\S]{{0,100}}?{_ESCAPED}")  # two letters or digits are escaped
_RUN = re.compile("[A-Za-z0-9]+")
_LINE = 60  # characters: no encoder breaks lines earlier
_BREAK = re.compile(r"[\r\n]\s*")  # what base64 is folded by
_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_RUNS = {"%": ("%", "utf-8", 1), "x": ("\\x", "utf-8", 1), "u": ("\\u", "utf-16-be", 2)}  # mark, encoding, bytes of one
_PLACE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,99})\}")

_CHUNK_BYTES = 64 * 2**10
_LONGEST_WORD = 4096  # bytes
_STDERR = 2


class SecretUnknown(Exception):
    """A secret is missing or too short. The message names it, without its value."""


class Secrets:
    """Values by name. Its repr shows names only. Raises `SecretUnknown` for a value of less than 8 characters."""

    def __init__(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if len(value) < _SHORTEST:
                raise SecretUnknown(f"The secret {name} has less than {_SHORTEST} characters: it could not be hidden.")
        self._values = dict(values)
        self._passing = dict[str, deque[str]]()

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __bool__(self) -> bool:
        return bool(self._values) or bool(self._passing)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self._values)

    def with_values(self, values: Mapping[str, str]) -> "Secrets":
        """Return these, with values made of them, which are hidden as well.

        Values too short to be hidden are left out.
        """
        made = {name: value for name, value in values.items() if len(value) >= _SHORTEST}
        return Secrets({**self._values, **made})

    def hide_also(self, name: str, value: str) -> None:
        """Hide one more value from now on, which is filled in nowhere.

        Of each name the last few are hidden: a replaced one may still occur.
        """
        known = self._passing.setdefault(name, deque(maxlen=_KEPT))
        if value not in known and len(value) >= _SHORTEST:
            known.append(value)
            self.__dict__.pop("forms", None)
            self.__dict__.pop("_pieces", None)

    def plain(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values of these, for use. Raises `SecretUnknown`."""
        return {name: self._value(name) for name in names}

    def fill(self, text: str) -> str:
        """Replace each `${NAME}` by the secret of this name. Raises `SecretUnknown`."""
        return _PLACE.sub(lambda place: self._value(place[1]), text)

    def hide(self, text: str) -> str:
        """Return the text with `[secret NAME]` in the place of each value and of each line of one, however it is written there.

        The text is searched as it is, decoded once, and so on until nothing changes, and without line breaks at last. So a
        value is found in JSON, in a URL, a form, HTML and Python's words, also in several of them around each other, and
        in base64.
        """
        if not self or not (any(each in text for each in self._pieces) or _HINT.search(text)):
            return text  # nearly every text, at little cost
        shown, end = list[str](), 0
        for start, stop, name in sorted(self._places_in(text), key=lambda place: (place[0], -place[1])):
            if start >= end:
                shown += text[end:start], f"[secret {name}]"
            end = max(end, stop)
        return "".join((*shown, text[end:])) if shown else text

    def hide_json(self, data: bytes) -> bytes:
        """Hide the values in JSON in UTF-8, which stays JSON; returns the same object if no value is in it."""
        hidden = self.hide_bytes(data)
        if hidden is data:
            return data
        try:
            return json.dumps(self._hidden(json.loads(data)), ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError):  # no JSON: its reader will say so
            return hidden

    def hide_bytes(self, data: bytes) -> bytes:
        """Hide the values in UTF-8; returns the same object if no value is in it."""
        if not self:
            return data
        text = data.decode(errors="surrogateescape")
        hidden = self.hide(text)
        return data if hidden is text else hidden.encode(errors="surrogateescape")

    def _value(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            raise SecretUnknown(f"There is no secret named {name!r} here: name it in `secrets`.") from None

    def _places_in(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield where values begin and end, each with its secret's name."""
        forms = [(_folded(form), name) for form, name in self.forms]
        last: tuple[str, Sequence[int]] = text, ()
        for decoded, places in _layers(text):
            last = _folded(decoded), places
            yield from _found(forms, *last)
        bare = "".join(last[0].split())
        if any("".join(form.split()) in bare for form, _ in forms):
            yield from _found(forms, *_rewritten(_BREAK, *last))

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.hide(key): self._hidden(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._hidden(each) for each in value]
        if isinstance(value, str):
            return self.hide(value)
        written = json.dumps(value)
        return value if (hidden := self.hide(written)) == written else hidden

    @cached_property
    def forms(self) -> tuple[tuple[str, str], ...]:
        """The texts that are searched for, each with its secret's name: values, their decoded forms, their lines, and all of these in base64."""
        found = dict[str, str]()
        passing = ((name, value) for name, values in self._passing.items() for value in values)
        for name, value in (*self._values.items(), *passing):
            for text in (value, *value.splitlines()):
                for form, _ in _layers(text):
                    if len(form) >= _SHORTEST:
                        found = {**dict.fromkeys((form, *_in_base64(form)), name), **found}
        return tuple(sorted(found.items(), key=lambda item: (-len(item[0]), item)))

    @cached_property
    def _pieces(self) -> frozenset[str]:
        """Return two pieces of each form, of which one is in every text with it, unless two letters or digits are escaped.

        They are letters and digits only, and a line break divides at most one of them.
        """
        runs = [max(_RUN.findall(form), key=len, default="")[:_LINE] for form, _ in self.forms]
        return frozenset(half for run in runs for half in (run[: len(run) // 2], run[len(run) // 2 :]))


def _found(forms: Iterable[tuple[str, str]], text: str, places: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    for form, name in forms:
        at = text.find(form)
        while at != -1:
            yield places[at], places[at + len(form)], name
            at = text.find(form, at + len(form))


def _folded(text: str) -> str:
    """Replace `+` by a blank, as in forms."""
    return text.replace("+", " ")


def _layers(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the text, what it decodes to, and so on until nothing changes, each with its places in the text."""
    places: Sequence[int] = range(len(text) + 1)
    for _ in range(_MOST_LAYERS):
        yield text, places
        decoded, places = _rewritten(_ESCAPE, text, places)
        if decoded == text:
            return
        text = decoded


def _rewritten(pattern: re.Pattern[str], text: str, places: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Return the text with what each match stands for, and its places."""
    parts, kept, last = list[str](), array("L"), 0
    for match in pattern.finditer(text):
        characters, offsets = _meaning(match[0])
        parts += text[last : match.start()], characters
        kept.extend(places[last : match.start()])
        kept.extend(places[match.start() + each] for each in offsets)
        last = match.end()
    if not last:
        return text, places
    kept.extend(places[last:])
    return "".join((*parts, text[last:])), kept


def _meaning(written: str) -> tuple[str, Sequence[int]]:
    """Return the characters that an escape, or a run of escapes, stands for, and where in it each one begins."""
    if written[0] == "&":
        characters = html.unescape(written)
        return characters, range(len(written)) if characters == written else [0] * len(characters)
    if written[0] in "\r\n":
        return "", ()
    if written[0] == "\\" and written[1] not in "ux":
        return _SIMPLE.get(written[1], written[1]), (0,)
    mark, encoding, size = _RUNS[written[1] if written[0] == "\\" else "%"]
    data = bytes.fromhex(written.replace(mark, ""))
    try:
        characters = data.decode(encoding, "surrogatepass" if size > 1 else "strict")
    except UnicodeDecodeError:
        characters, encoding = data.decode("latin-1"), "latin-1"
    units = [len(each.encode(encoding, "surrogatepass")) // size for each in characters]
    return characters, [unit * (len(mark) + 2 * size) for unit in accumulate(units[:-1], initial=0)]


def _in_base64(value: str) -> Iterator[str]:
    """Yield the value's forms in the base64 of a text around it, without the characters that it shares with its neighbours."""
    data = value.encode("utf-8", "replace")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode()
        first = -(-before * 8 // 6)
        form = encoded[first : (before + len(data)) * 8 // 6]
        if len(form) >= _SHORTEST:
            yield form
            yield form.replace("+", "-").replace("/", "_")


class HiddenStream:
    """Hides values in bytes that come in pieces: a possible beginning of a value is held back until it is certain.

    A value may be encoded, so the last word is held back as well, unless it is longer than any encoded value.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._forms = [form.encode() for form, _ in secrets.forms]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the part that can be shown."""
        data = self._held + data
        cut = self._cut_of(data)
        self._held = data[cut:]
        return self._secrets.hide_bytes(data[:cut])

    def end(self) -> bytes:
        """Return the rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._secrets.hide_bytes(rest)

    def _cut_of(self, data: bytes) -> int:
        """Return the position up to which there is no part of an incomplete value, and no divided value."""
        word = len(data) - len(data.rsplit(maxsplit=1)[-1]) if data and not data[-1:].isspace() else len(data)
        begun = [at for form in self._forms for at in _begun_at(form, data)]
        cut = min((*begun, word if len(data) - word < _LONGEST_WORD else len(data)))
        while (divided := self._divided_at(data, cut)) is not None:
            cut = divided
        return cut

    def _divided_at(self, data: bytes, cut: int) -> int | None:
        for form in self._forms:
            at = data.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
            if at != -1 and at < cut:
                return at
        return None


@contextlib.contextmanager
def output_without(secrets: Secrets) -> Generator[int]:
    """Yield a descriptor for a process that is started meanwhile: its output goes to this one's standard error, until all have closed it."""
    if not secrets:
        yield _STDERR
        return
    source, sink = os.pipe()
    threading.Thread(target=_copy, args=(source, secrets), daemon=True).start()
    try:
        yield sink
    finally:
        os.close(sink)


def _copy(descriptor: int, secrets: Secrets) -> None:
    stream = HiddenStream(secrets)
    with contextlib.suppress(OSError), contextlib.closing(os.fdopen(descriptor, "rb", buffering=0)) as source:
        while data := source.read(_CHUNK_BYTES):
            _write(stream.feed(data))
        _write(stream.end())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


def _begun_at(form: bytes, data: bytes) -> Iterator[int]:
    """Yield the start of the first suffix of the data that the form begins with, if there is one."""
    at = data.find(form[:1], max(0, len(data) - len(form) + 1))
    while at != -1:
        if form.startswith(data[at:]):
            yield at
            return
        at = data.find(form[:1], at + 1)
