"""Finds personal data in texts and in JSON values, at any depth, and hides it or refuses what has it.

Each text is looked at by itself. Of a stream, such as messages of progress or lines of a log, each message is one: a value that
is cut in two between them is in neither, and is not found. Who streams text that belongs together hands it over whole.

It takes time in proportion to the length of the texts, whatever is in them, and never looks anything up.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

from toolfleet_registry.errors import PersonalDataBlocked
from toolfleet_registry.personal_data.detectors.accounts import IbanDetector
from toolfleet_registry.personal_data.detectors.cards import CardDetector
from toolfleet_registry.personal_data.detectors.emails import EmailDetector
from toolfleet_registry.personal_data.detectors.internet_addresses import IpDetector, MacAddressDetector
from toolfleet_registry.personal_data.detectors.number_plans import NumberPlans
from toolfleet_registry.personal_data.detectors.phones import PhoneDetector
from toolfleet_registry.personal_data.detectors.urls import UrlDetector
from toolfleet_registry.personal_data.found import KINDS, NOT_SEARCHED, FoundData, settled
from toolfleet_registry.personal_data.json_leaves import JsonLeaves
from toolfleet_registry.personal_data.patterns import own_patterns
from toolfleet_registry.personal_data.quick_check import QuickCheck
from toolfleet_registry.personal_data.searched_texts import SearchedTexts
from toolfleet_registry.personal_data.strategies import STRATEGIES, Strategy, hiding, label, labels_of
from toolfleet_registry.system.offload import aside

DEFAULT_REGIONS = ("US", "GB", "DE", "FR", "ES", "PL", "RU", "JP", "CN")
"""Where phone numbers are looked for as one writes them at home."""

LARGE = 32 * 1024
"""Bytes of a JSON value from which on it is searched in a thread: some 3 ms."""

_MOST_ROUNDS = 4
_WITHOUT_CODES = frozenset(KINDS) - {"url"}


class _Detector(Protocol):
    def find(self, texts: SearchedTexts) -> Iterable[FoundData]: ...


@dataclass(frozen=True, slots=True)
class HiddenValue:
    """A JSON value without personal data, the very same if it had none; and how much was hidden, by kind."""

    value: Any
    counts: Mapping[str, int]


class PersonalData:
    """What is looked for, and what becomes of it.

    `types`: of `KINDS`. `patterns`: own kinds by name, for RE2. `strategy`: as `strategies.Strategy` says. `key`: for `hash`, at
    least 16 bytes. `regions`: whose phone numbers are found without `+`; each costs time and some more false alarms.

    Raises `ValueError`, in one sentence, for what is not to be had.
    """

    def __init__(
        self,
        types: Iterable[str] = KINDS,
        patterns: Mapping[str, str] | None = None,
        strategy: Strategy = "redact",
        *,
        key: bytes | None = None,
        regions: Sequence[str] = DEFAULT_REGIONS,
    ) -> None:
        wanted = set(types)
        if unknown := sorted(wanted - set(KINDS)):
            raise ValueError(f"{unknown[0]!r} is no type of personal data: {', '.join(KINDS)} are, and patterns.")
        if strategy not in STRATEGIES:
            raise ValueError(f"{strategy!r} is no strategy: {', '.join(STRATEGIES)} are.")
        if not wanted and not patterns:
            raise ValueError("Neither types nor patterns of personal data are named.")
        self._own = own_patterns(patterns or {})
        self._detectors: tuple[_Detector, ...] = (*_detectors(wanted, regions), *self._own)
        self._quick_check = QuickCheck()
        self._labels = labels_of({*KINDS, NOT_SEARCHED, *(pattern.name for pattern in self._own)})
        self._blocks = strategy == "block"
        e164 = NumberPlans(regions).e164 if "phone" in wanted else lambda _: None
        self._hiding = hiding(strategy, key, e164)

    def find(self, text: str) -> list[FoundData]:
        """What is in a text, sorted and without overlaps, as `found.settled` says. Labels that hide something are left out."""
        return self._found([text], [""]).get(0, [])

    def hide(self, value: Any) -> HiddenValue:
        """A JSON value with everything hidden that `find` finds in its texts, names of members and numbers.

        A number is replaced by a text. What lies deeper than 100 levels, or is no JSON, becomes `[NOT_SEARCHED]`. What is hidden
        already stays as it is. With `block` it raises `PersonalDataBlocked`, for the first place in the value's order.
        """
        if not self._own and self._quick_check.rules_out(value):  # nearly always
            return HiddenValue(value, {})
        leaves = JsonLeaves(value, all_numbers=bool(self._own))
        found = self._found(leaves.texts, leaves.names)
        if not found and not leaves.unsearched:
            return HiddenValue(value, {})
        if self._blocks:
            first = min([*found, *leaves.unsearched])
            kind = NOT_SEARCHED if first in leaves.unsearched else found[first][0].kind
            pointer, is_name = leaves.pointer(first)
            raise PersonalDataBlocked(kind, pointer, is_name=is_name)
        counts = Counter(each.kind for each in chain.from_iterable(found.values()))
        texts = self._hidden(leaves, found) | dict.fromkeys(leaves.unsearched, label(NOT_SEARCHED))
        if leaves.unsearched:
            counts[NOT_SEARCHED] = len(leaves.unsearched)
        return HiddenValue(leaves.rebuilt(texts), dict(counts))

    async def hide_aside(self, value: Any, *, size: int) -> HiddenValue:
        """The same without holding the event loop: a value of `size` bytes of JSON is searched in a thread if it is large."""
        return await aside(partial(self.hide, value), is_large=size > LARGE)

    def _hidden(self, leaves: JsonLeaves, found: dict[int, list[FoundData]]) -> dict[int, str]:
        """The texts with something in them, hidden: until nothing is found any more, as where a new edge shows something."""
        texts = dict[int, str]()
        for _ in range(_MOST_ROUNDS):
            if not found:
                return texts
            for number, places in found.items():
                texts[number] = self._replaced(texts.get(number, leaves.texts[number]), places)
            numbers = list(found)
            again = self._found([texts[number] for number in numbers], [leaves.names[number] for number in numbers])
            found = {numbers[place]: places for place, places in again.items()}
        return texts | {number: label(places[0].kind) for number, places in found.items()}

    def _replaced(self, text: str, places: list[FoundData]) -> str:
        pieces, position = list[str](), 0
        for each in places:
            value = text[each.start : each.end] if each.value is None else each.value
            hidden = self._hiding(each.kind, value) if each.is_one else label(each.kind)
            pieces += (text[position : each.start], hidden)
            position = each.end
        return "".join([*pieces, text[position:]])

    def _found(self, texts: Sequence[str], names: Sequence[str]) -> dict[int, list[FoundData]]:
        """What is in each of the texts that has something in it, by its number."""
        searched = SearchedTexts(texts, names, self._labels)
        decoded = self._decoded(searched, names)
        # An address as it is written, such as `x%20ada@…`, may have more before it than its reader gets. So may no URL.
        ends = {(each.kind, each.end) for each in decoded if each.kind in _WITHOUT_CODES}
        written = (each for each in self._detected(searched) if (each.kind, each.end) not in ends)
        all_found = [*written, *decoded]
        by_text = dict[int, list[FoundData]]()
        for each in settled(all_found):
            number = searched.text_at(each.start)
            by_text.setdefault(number, []).append(each.moved(-searched.starts[number]))
        return by_text

    def _detected(self, searched: SearchedTexts) -> Iterator[FoundData]:
        for detector in self._detectors:
            yield from detector.find(searched)

    def _decoded(self, searched: SearchedTexts, names: Sequence[str]) -> list[FoundData]:
        """Find what is in the texts once they are decoded, at its place in the text as it is."""
        if not (coded := searched.coded()):  # nearly always
            return []
        numbers, texts = list(coded), list(coded.values())
        decoded = SearchedTexts([text.text for text in texts], [names[number] for number in numbers], self._labels)
        found = list[FoundData]()
        for each in self._detected(decoded):
            place = decoded.text_at(each.start)
            begin = decoded.starts[place]
            start, end = texts[place].original(each.start - begin, each.end - begin)
            value = decoded.joined[each.start : each.end]
            found.append(FoundData(each.kind, start, end, value=value).moved(searched.starts[numbers[place]]))
        return found


def _detectors(wanted: set[str], regions: Sequence[str]) -> list[_Detector]:
    made: dict[str, Any] = {
        "iban": IbanDetector,
        "credit_card": CardDetector,
        "mac_address": MacAddressDetector,
        "ip": IpDetector,
        "email": EmailDetector,
        "url": UrlDetector,
        "phone": partial(PhoneDetector, regions),
    }
    return [make() for kind, make in made.items() if kind in wanted]
