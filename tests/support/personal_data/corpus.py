"""Draws texts of eight languages with personal data at known places, amid what looks like it: the same for the same seed.

Made from hand-written plans and sums, and not from what a detector knows. A text is prose, a list, JSON, a log line or a
row of a table; three of ten have nothing in them but look-alikes.
"""

import json
import random
from dataclasses import dataclass, field

from support.personal_data.look_alikes import LOOK_ALIKES
from support.personal_data.sentences import CARRIERS, LANGUAGES, NEGATIVES
from support.personal_data.values import MAKERS

WHOLE = 10_000


@dataclass(frozen=True)
class Place:
    """Where a value stands in its text: `text[start:end]`."""

    kind: str
    start: int
    end: int


@dataclass
class LabelledText:
    """A text, and all personal data in it, in their order. `look_alikes` names what is in it besides."""

    language: str
    text: str = ""
    places: list[Place] = field(default_factory=list)
    look_alikes: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Go on with what is no value."""
        self.text += text

    def add_value(self, kind: str, value: str, carrier: str = "{}") -> None:
        """Go on with a sentence that has a value in it."""
        before, after = carrier.split("{}")
        start = len(self.text) + len(before)
        self.places.append(Place(kind, start, start + len(value)))
        self.text += f"{before}{value}{after}"


def labelled_texts(count: int = WHOLE, *, seed: int = 1) -> list[LabelledText]:
    """The first `count` of the set that this seed stands for."""
    dice = random.Random(seed)
    return [_draw(dice) for _ in range(count)]


def _draw(dice: random.Random) -> LabelledText:
    drawn = LabelledText(dice.choice(LANGUAGES))
    form = dice.choices((_prose, _json, _log_line, _row, _look_alikes_only), weights=(40, 16, 8, 6, 30))[0]
    form(dice, drawn)
    return drawn


def _prose(dice: random.Random, drawn: LabelledText) -> None:
    for number in range(dice.choices((1, 2, 3), weights=(6, 3, 1))[0]):
        drawn.add("" if number == 0 else dice.choice((" ", "\n", " ")))
        if dice.random() < 0.35:
            _look_alike(dice, drawn)
            drawn.add(" ")
        kind = dice.choice(list(MAKERS))
        own, common = CARRIERS[drawn.language][kind], CARRIERS[drawn.language]["any"]
        carrier = dice.choice(own if dice.random() < 0.75 else common)
        draw = dice.random()
        if draw < 0.12 and kind not in {"url", "email"}:
            carrier = carrier.replace("{}", dice.choice(('"{}"', "({})", "'{}'", "**{}**", "<{}>")))
        drawn.add_value(kind, MAKERS[kind](dice, drawn.language), carrier)


def _look_alike(dice: random.Random, drawn: LabelledText) -> None:
    name = dice.choice(list(LOOK_ALIKES))
    drawn.look_alikes.append(name)
    before, after = dice.choice(NEGATIVES[drawn.language]).split("{}")
    drawn.add(f"{before}{LOOK_ALIKES[name](dice)}{after}")


def _look_alikes_only(dice: random.Random, drawn: LabelledText) -> None:
    for number in range(dice.choice((1, 2, 3))):
        drawn.add("" if number == 0 else " ")
        _look_alike(dice, drawn)


_FIELDS = {
    "email": ("email", "contact", "from", "to", "user"),
    "phone": ("phone", "mobile", "tel", "phone_number", "contact"),
    "credit_card": ("card", "pan", "card_number", "payment"),
    "iban": ("iban", "account", "bank_account"),
    "ip": ("ip", "client", "remote_addr", "host"),
    "mac_address": ("mac", "device", "hw_address"),
    "url": ("url", "href", "homepage", "link"),
}
_OTHER_FIELDS = {
    "order": ("order_id", "id", "number"),
    "tracking": ("tracking", "parcel"),
    "version": ("version", "agent"),
    "digest": ("sha", "etag", "id", "request_id"),
    "moment": ("created_at", "timestamp", "date"),
    "isbn": ("isbn", "ean"),
    "amount": ("price", "total", "size"),
    "place": ("location", "zip"),
    "failing": ("ref", "oid"),
    "code": ("name", "path"),
}


def _json(dice: random.Random, drawn: LabelledText) -> None:
    """An object of some members, written as programs write it."""
    colon, comma = dice.choice(((": ", ", "), (":", ","), (": ", ",\n  ")))
    drawn.add("{")
    for number in range(dice.randrange(2, 6)):
        drawn.add("" if number == 0 else comma)
        if dice.random() < 0.45:
            kind = dice.choice(list(MAKERS))
            value = MAKERS[kind](dice, drawn.language)
            drawn.add(f'"{dice.choice(_FIELDS[kind])}"{colon}"')
            drawn.add_value(kind, value)
            drawn.add('"')
        else:
            name = dice.choice(list(LOOK_ALIKES))
            drawn.look_alikes.append(name)
            value = json.dumps(LOOK_ALIKES[name](dice), ensure_ascii=False)
            value = value.strip('"') if value.strip('"').isdecimal() and not value.startswith('"0') else value
            drawn.add(f'"{dice.choice(_OTHER_FIELDS[name])}"{colon}{value}')
    drawn.add("}")


def _log_line(dice: random.Random, drawn: LabelledText) -> None:
    drawn.add(
        f"2026-11-{dice.randrange(1, 29):02} 12:{dice.randrange(60):02}:07,{dice.randrange(1000):03} INFO [req-{dice.getrandbits(32):08x}] "
    )
    kind = dice.choice(("ip", "ip", "email", "url", "mac_address", "phone"))
    drawn.add(
        dice.choice((f"{kind.partition('_')[0]}=", "user=", "from ", "peer ", "GET ")) if kind != "phone" else "phone="
    )
    drawn.add_value(kind, MAKERS[kind](dice, drawn.language))
    suffix = (
        f":{dice.randrange(1024, 65536)}" if kind == "ip" and ":" not in drawn.text[drawn.places[-1].start :] else ""
    )
    drawn.add(f"{suffix} status={dice.choice((200, 404, 500))} bytes={dice.randrange(10**7)} took={dice.random():.6f}")


def _row(dice: random.Random, drawn: LabelledText) -> None:
    """A line of a table: the phone's columns are named nowhere near."""
    separator = dice.choice((";", "\t", " | ", ","))
    drawn.add(str(dice.randrange(10**6)))
    for kind in dice.sample(list(MAKERS), k=dice.randrange(1, 4)):
        drawn.add(separator)
        drawn.add_value(kind, MAKERS[kind](dice, drawn.language))
        if dice.random() < 0.5:
            drawn.add(f"{separator}{dice.randrange(10**5)}")
