"""Sets the headers of pages: what a browser may load and send from them, which is nothing but the gateway's own."""

from typing import Final

from starlette.responses import Response

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline scripts, no inline styles, no other host."""

_HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Without a referrer browsers would say `null` as the origin of a form.
    "referrer-policy": "same-origin",
}


def with_page_headers(response: Response) -> Response:
    """The same, with them."""
    response.headers.update(_HEADERS)
    return response
