"""Writes to standard error what another process says, without the values of secrets."""

import contextlib
import os
import threading
from collections.abc import Generator, Iterator

from toolfleet_modules.hosts.serving.secrets import Secrets

_CHUNK_BYTES = 64 * 2**10
_LONGEST_WORD = 4096  # bytes
_STDERR = 2


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
        """The rest, where nothing follows any more."""
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
