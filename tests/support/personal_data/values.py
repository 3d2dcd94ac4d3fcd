"""Makes personal data of every other kind, in the ways it is written: accounts, cards, addresses of people and machines."""

import random
import string
from collections.abc import Callable

from support.personal_data.phone_numbers import phone

_FIRST = [
    "anna",
    "lukas",
    "marie",
    "jean",
    "pablo",
    "lucia",
    "olga",
    "ivan",
    "yuki",
    "kenji",
    "wei",
    "li",
    "maria",
    "tomasz",
    "kasia",
    "sofia",
    "noah",
    "emma",
    "liam",
    "zoe",
    "amir",
    "fatima",
]
_LAST = [
    "schmidt",
    "mueller",
    "dupont",
    "martin",
    "garcia",
    "lopez",
    "ivanova",
    "petrov",
    "tanaka",
    "suzuki",
    "wang",
    "zhang",
    "kowalski",
    "nowak",
    "smith",
    "jones",
    "brown",
]
_HOSTS = [
    "example",
    "mail-server",
    "acme",
    "northwind",
    "contoso",
    "globex",
    "initech",
    "uni-bonn",
    "posteo",
    "web",
    "gmx",
    "orange",
    "wanadoo",
    "yandex",
    "onet",
    "docomo",
    "softbank",
    "qq",
    "163",
    "proton",
    "fastmail",
    "kyoto-u",
    "stadtwerke",
]
_ENDS = [
    "com",
    "org",
    "net",
    "de",
    "fr",
    "es",
    "pl",
    "ru",
    "jp",
    "cn",
    "co.uk",
    "ac.jp",
    "com.br",
    "io",
    "eu",
    "info",
    "museum",
    "photography",
    "co.jp",
    "edu.pl",
    "gouv.fr",
]
_IDN_HOSTS = (
    "bücher.example",
    "münchen.de",
    "почта.рф",
    "例え.jp",
    "español.es",
    "żółw.pl",
    "xn--bcher-kva.example",
    "société.fr",
)
_IBANS = {  # what follows the check digits: `n` digits, `a` capitals, `c` either
    "DE": "n18", "FR": "n10 c11 n2", "GB": "a4 n14", "ES": "n20", "IT": "a1 n10 c12", "NL": "a4 n10", "PL": "n24",
    "CH": "n5 c12", "AT": "n16", "BE": "n12", "SE": "n20", "PT": "n21", "CZ": "n20", "NO": "n11", "FI": "n14",
    "IE": "a4 n14", "DK": "n14", "SA": "n2 c18", "AE": "n19", "TR": "n6 c16", "LU": "n3 c13", "HU": "n24", "GR": "n7 c16",
}  # fmt: skip
_CARDS = (  # beginnings, length, groups
    (("4",), 16, (4, 4, 4, 4)),
    (("51", "52", "53", "54", "55", "2221", "2500", "2720"), 16, (4, 4, 4, 4)),
    (("34", "37"), 15, (4, 6, 5)),
    (("6011", "65", "644"), 16, (4, 4, 4, 4)),
    (("3528", "3589", "3540"), 16, (4, 4, 4, 4)),
    (("36", "38", "300"), 14, (4, 6, 4)),
    (("62",), 16, (4, 4, 4, 4)),
    (("6759", "5018"), 16, (4, 4, 4, 4)),
)
_HEX = "0123456789abcdef"


def email(dice: random.Random, language: str) -> str:
    """An address: plain, with a tag, a number, capitals, or a domain that is not ASCII."""
    first, last = dice.choice(_FIRST), dice.choice(_LAST)
    local = dice.choice(
        (
            f"{first}.{last}", f"{first}{dice.randrange(1, 2010)}", f"{first[0]}{last}", f"{first}_{last}", f"{first}-{last}",
            f"{first}.{last}+{dice.choice(('news', 'shop', '2024', 'test.1'))}", first, f"{first.title()}.{last.title()}",
            f"o'{last}", f"{first}.{first[0]}.{last}",
        )
    )  # fmt: skip
    if dice.random() < 0.08:
        return f"{local}@{dice.choice(_IDN_HOSTS)}"
    host = f"{dice.choice(_HOSTS)}.{dice.choice(_ENDS)}"
    host = f"{dice.choice(('mail', 'smtp2', 'eu-west', 'cs'))}.{host}" if dice.random() < 0.2 else host
    return f"{local}@{host}" if dice.random() < 0.93 else f"{local}@{host}".upper()


def credit_card(dice: random.Random, language: str) -> str:
    """A card's number whose last digit is right (Luhn), alone or in groups."""
    beginnings, length, groups = dice.choices(_CARDS, weights=(35, 25, 10, 8, 6, 5, 6, 5))[0]
    digits = dice.choice(beginnings)
    digits += "".join(dice.choices(string.digits, k=length - 1 - len(digits)))
    digits += luhn_digit(digits)
    separator = dice.choice(("", " ", "-", " "))
    return separator.join(digits[sum(groups[:n]) : sum(groups[: n + 1])] for n in range(len(groups)))


def luhn_digit(digits: str) -> str:
    """What must follow these digits, so that the whole is right."""
    weighted = (int(digit) * (2 - place % 2) for place, digit in enumerate(reversed(digits)))
    return str(-sum(value // 10 + value % 10 for value in weighted) % 10)


def iban(dice: random.Random, language: str) -> str:
    """An account of one of 23 countries with right check digits, in fours or without spaces."""
    country = dice.choice(list(_IBANS))
    account = "".join(_part(dice, part) for part in _IBANS[country].split())
    check = 98 - int("".join(str(int(char, 36)) for char in f"{account}{country}00")) % 97
    text = f"{country}{check:02}{account}"
    draw = dice.random()
    if draw < 0.5:
        blank = "\u00a0" if draw < 0.04 else " "
        return blank.join(text[start : start + 4] for start in range(0, len(text), 4))
    return text.lower() if draw > 0.97 else text


def _part(dice: random.Random, part: str) -> str:
    letters = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}[part[0]]
    return "".join(dice.choices(letters, k=int(part[1:])))


def ip(dice: random.Random, language: str) -> str:
    """An address of IPv4, or of IPv6 in one of its spellings."""
    if dice.random() < 0.6:
        return _ipv4(dice)
    groups = [f"{dice.randrange(1, 65536):x}" for _ in range(8)]
    groups[0] = dice.choice(("2001", "2a01", "2a02", "fe80", "fd12", "2606", "2400"))
    hidden = dice.randrange(1, 6)
    written = dice.choice(
        (
            ":".join(groups),
            ":".join(group.zfill(4) for group in groups),
            f"{':'.join(groups[:hidden])}::{':'.join(groups[hidden + 2 :])}",
            f"{groups[0]}:{groups[1]}::{dice.randrange(1, 300):x}",
            f"{groups[0]}::{groups[-1]}",
            f"::ffff:{_ipv4(dice)}",
            f"fe80::{':'.join(groups[4:])}%{dice.choice(('eth0', 'en1', 'wlan0'))}",
        )
    )
    return written.upper() if dice.random() < 0.15 and "%" not in written else written


def _ipv4(dice: random.Random) -> str:
    first = dice.choice(("10", "192.168", "172.16", str(dice.randrange(1, 224)), str(dice.randrange(1, 224))))
    return ".".join([first, *(str(dice.randrange(256)) for _ in range(3 - first.count(".")))])


def mac_address(dice: random.Random, language: str) -> str:
    """Six bytes with colons, with dashes, or as switches write it."""
    digits = "".join(dice.choices(_HEX, k=12))
    digits = digits.upper() if dice.random() < 0.5 else digits
    form = dice.choice((":", ":", "-", "."))
    step = 4 if form == "." else 2
    return form.join(digits[start : start + step] for start in range(0, 12, step))


def url(dice: random.Random, language: str) -> str:
    """An address of a page or a service, with all that may stand in one."""
    host = f"{dice.choice(('www.', 'api.', '', 'shop.', 'docs.'))}{dice.choice(_HOSTS)}.{dice.choice(_ENDS)}"
    name = dice.choice(_FIRST)
    return dice.choice(
        (
            f"https://{host}",
            f"http://{host}/",
            f"https://{host}/users/{name}",
            f"https://{host}:8443/api/v2/orders/{dice.randrange(10**6)}?page=2&sort=asc",
            f"https://{host}/suche?q={name}%20{dice.choice(_LAST)}#top",
            f"http://{_ipv4(dice)}:8080/status",
            f"http://[2001:db8::{dice.randrange(1, 9999):x}]:8080/index.html",
            f"ftp://files.{dice.choice(_HOSTS)}.org/pub/{name}.tar.gz",
            f"https://en.wikipedia.org/wiki/{name.title()}_(disambiguation)",
            f"https://{name}:geheim{dice.randrange(99)}@{host}/login",
            f"https://{host}/reset?email={name}@{dice.choice(_HOSTS)}.com&token={dice.getrandbits(64):x}",
            f"www.{dice.choice(_HOSTS)}.{dice.choice(_ENDS)}/{name}",
            f"https://{dice.choice(_IDN_HOSTS)}/{name}",
            f"wss://{host}/socket?id={dice.randrange(10**9)}",
            f"HTTPS://{host.upper()}/{name.upper()}",
        )
    )


MAKERS: dict[str, Callable[[random.Random, str], str]] = {
    "email": email,
    "phone": phone,
    "credit_card": credit_card,
    "iban": iban,
    "ip": ip,
    "mac_address": mac_address,
    "url": url,
}
