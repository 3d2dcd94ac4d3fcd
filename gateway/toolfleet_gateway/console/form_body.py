"""Reads the forms that browsers send, and refuses what another site has had them send."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_gateway.http.routes import read_bytes

_MOST_FIELDS = 500
_OWN_SITES = frozenset({"same-origin", "none"})


class FormFields(dict[str, str]):
    """The fields of a form, or of a query, by name; of one that comes twice the last."""

    def number(self, name: str, usual: int, *, least: int = 0, most: int) -> int:
        """A whole number; the usual one if it is none."""
        text = self.get(name, "")
        return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual  # noqa: PLR2004 - digits

    def chosen(self, *names: str) -> dict[str, str]:
        """Return the non-empty ones of these fields."""
        return {name: value for name in names if (value := self.get(name, "").strip())}


async def read_form(request: Request) -> FormFields:
    """The form of a `POST`. Raises `Problem` and `ClientGone`."""
    if request.headers.get("sec-fetch-site", "same-origin") not in _OWN_SITES:
        raise Problem(403, "wrong_origin", "Another site has sent this form.")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "A form must be sent as application/x-www-form-urlencoded.")
    return fields_of((await read_bytes(request.receive)).decode("ascii", "replace"))


def fields_of(text: str) -> FormFields:
    """Parse a query or a form. Raises `Problem`."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise invalid_request(f"There are more than {_MOST_FIELDS} fields.") from None
    return FormFields(pairs)
