"""Makes what looks like personal data and is none: order numbers, versions, hashes, times, prices, and what fails its check."""

import random
import string
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from support.personal_data.values import credit_card, iban

_HEX = "0123456789abcdef"


def order(dice: random.Random) -> str:
    """Numbers of orders, invoices, customers, parcels and parts."""
    return dice.choice(
        (
            _digits(dice, dice.randrange(5, 13)),
            f"{dice.randrange(2015, 2027)}-{_digits(dice, 6)}",
            f"ORD-{_digits(dice, 8)}",
            f"{_digits(dice, 3)}-{_digits(dice, 7)}-{_digits(dice, 7)}",  # of a large shop
            f"INV/{dice.randrange(2015, 2027)}/{_digits(dice, 5)}",
            f"{_digits(dice, 4)}.{_digits(dice, 3)}.{_digits(dice, 2)}",
            f"#{_digits(dice, 9)}",
            f"{dice.choice(string.ascii_uppercase)}{_digits(dice, 4)}-{_digits(dice, 4)}-{_digits(dice, 2)}",
        )
    )


def tracking(dice: random.Random) -> str:
    """Numbers of parcels, as carriers write them."""
    return dice.choice(
        (
            f"1Z{''.join(dice.choices(string.digits + string.ascii_uppercase, k=6))}{_digits(dice, 10)}",
            f"{''.join(dice.choices(string.ascii_uppercase, k=2))}{_digits(dice, 9)}{dice.choice(('DE', 'CN', 'FR', 'US'))}",
            f"0034043{_digits(dice, 13)}",
            f"JJD{_digits(dice, 18)}",
            f"9400 1{_digits(dice, 3)} {_digits(dice, 4)} {_digits(dice, 4)} {_digits(dice, 4)} {_digits(dice, 2)}",
        )
    )


def version(dice: random.Random) -> str:
    """Versions that say so: by a letter, a word, or what they are versions of. Four numbers alone are an address."""
    four = ".".join(str(dice.randrange(20)) for _ in range(4))
    three = ".".join(str(dice.randrange(30)) for _ in range(3))
    return dice.choice(
        (
            f"v{four}", f"version {four}", f"Version {four}", f"release {four}", three, f"v{three}-rc.{dice.randrange(9)}",
            f"Chrome/{dice.randrange(90, 140)}.0.0.0 Safari/537.36", f"libfoo=={four}", f"{three}.{dice.randrange(300, 999)}",
            f"lodash@{three}", f"@types/node@{three}", f"openssl-{three}.tar.gz", f"driver-{four}.zip",
        )
    )  # fmt: skip


def digest(dice: random.Random) -> str:
    """Hashes, fingerprints and ids in hexadecimal."""
    bits = dice.choice((7, 8, 32, 40, 64))
    text = "".join(dice.choices(_HEX, k=bits))
    return dice.choice(
        (
            text, f"sha256:{text}", str(uuid.UUID(int=dice.getrandbits(128), version=4)),
            ":".join("".join(dice.choices(_HEX, k=2)) for _ in range(dice.choice((16, 20, 32)))),
            str(uuid.UUID(int=dice.getrandbits(128))).upper(), f"0x{text}", f"#{text[:6]}",
        )
    )  # fmt: skip


def moment(dice: random.Random) -> str:
    """Dates and times of day."""
    at = datetime(2015, 1, 1, tzinfo=UTC) + timedelta(seconds=dice.randrange(12 * 365 * 86400))
    forms = (
        "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y",
        "%Y-%m-%d", "%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%d%H%M%S", "%d-%m-%Y", "%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f+02:00",
    )  # fmt: skip
    draw = dice.random()
    if draw < 0.2:
        return str(int(at.timestamp()) if draw < 0.1 else int(at.timestamp() * 1000) + dice.randrange(1000))
    if draw < 0.25:
        return f"{at:%Y-%m-%d} - {at + timedelta(days=9):%Y-%m-%d}"
    return at.strftime(dice.choice(forms))


def isbn(dice: random.Random) -> str:
    """Books, by the old and the new system."""
    if dice.random() < 0.5:
        digits = f"{dice.choice(('978', '979'))}{dice.choice('0123')}{_digits(dice, 8)}"
        check = -sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(digits)) % 10
        parts = [digits[:3], digits[3], digits[4:7], digits[7:12], str(check)]
    else:
        digits = f"{dice.choice('0123')}{_digits(dice, 8)}"
        check = sum((10 - place) * int(digit) for place, digit in enumerate(digits))
        parts = [digits[0], digits[1:4], digits[4:9], "0123456789X"[-check % 11]]
    return dice.choice(("-", "-", " ", "")).join(parts)


def amount(dice: random.Random) -> str:
    """Prices and other quantities."""
    whole = dice.randrange(1, 10**7)
    return dice.choice(
        (
            f"{whole:,}.{_digits(dice, 2)} $", f"€{whole:,}".replace(",", "."), f"{whole:,} €".replace(",", " "),
            f"{whole}.{_digits(dice, 2)}", f"{whole:,}".replace(",", "'"), f"{whole:,} zł".replace(",", "\u00a0"), f"¥{whole}",
            f"{whole} kB", f"{dice.random():.16f}", f"{dice.randrange(100)}.{_digits(dice, 9)}%", f"1{_digits(dice, 3)}x{_digits(dice, 4)} px",
        )
    )  # fmt: skip


def place(dice: random.Random) -> str:
    """Coordinates, post codes, rooms, ranges."""
    north, east = dice.uniform(-90, 90), dice.uniform(-180, 180)
    return dice.choice(
        (
            f"{north:.6f}, {east:.6f}", f"{north:.4f},{east:.4f}", f"{abs(north):.5f}° N {abs(east):.5f}° E", f"D-{_digits(dice, 5)}",
            f"{_digits(dice, 5)}-{_digits(dice, 4)}", f"{_digits(dice, 2)}-{_digits(dice, 3)}", f"geo:{north:.3f},{east:.3f}",
            f"{dice.randrange(100)}-{dice.randrange(100, 999)}", f"{_digits(dice, 3)} {_digits(dice, 2)}",
        )
    )  # fmt: skip


def failing(dice: random.Random) -> str:
    """What has the shape and not the sum, or a part that is too large."""
    draw = dice.randrange(5)
    if draw == 0:
        text = credit_card(dice, "en")
        return text[:-1] + str((int(text[-1]) + dice.randrange(1, 10)) % 10)
    if draw == 1:
        text = iban(dice, "en").upper()
        return f"{text[:2]}{(int(text[2:4]) + dice.randrange(1, 80)) % 97:02}{text[4:]}"
    if draw == 2:
        return f"{dice.randrange(256, 999)}.{dice.randrange(256)}.{dice.randrange(256)}.{dice.randrange(256)}"
    if draw == 3:
        return f"1.3.6.1.4.1.{dice.randrange(10**5)}.{dice.randrange(99)}.{dice.randrange(9)}"
    return ":".join(_hex(dice, 2) for _ in range(dice.choice((3, 4, 5, 7))))


def code(dice: random.Random) -> str:
    """Lines of programs and names of files."""
    return dice.choice(
        (
            "std::vector<int>::iterator", "a[::2]", "rows[1::3]", "logo@2x.png", "@app.route('/users')", "user@localhost",
            f"IMG_{_digits(dice, 8)}_{_digits(dice, 6)}.jpg", "main.py", "README.md", "example.com", "C:\\temp\\new", "foo.bar.baz()",
            "@anna_s", "a @ b", "git@github.com:acme/tools.git", "10:30-12:00", "16:9", "Face::Bad", "http://", "3:2:1", "192.168", "Fe::add",
        )
    )  # fmt: skip


def _digits(dice: random.Random, count: int) -> str:
    return "".join(dice.choices(string.digits, k=count))


def _hex(dice: random.Random, count: int) -> str:
    return "".join(dice.choices(_HEX, k=count))


LOOK_ALIKES: dict[str, Callable[[random.Random], str]] = {
    "order": order,
    "tracking": tracking,
    "version": version,
    "digest": digest,
    "moment": moment,
    "isbn": isbn,
    "amount": amount,
    "place": place,
    "failing": failing,
    "code": code,
}
