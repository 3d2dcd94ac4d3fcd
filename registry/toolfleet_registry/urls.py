"""Which URLs a fleet can work with. The reasons never repeat a URL: it may hold a password."""

from urllib.parse import parse_qsl, urlsplit

_REDIS_SCHEMES = ("redis", "rediss", "unix")
_BROKER_SCHEMES = (*_REDIS_SCHEMES, "sentinel", "amqp", "amqps")
# Others change how redis-py speaks and waits, which is for the fleet to decide.
_REDIS_OPTIONS = ("db", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")


def check_redis_url(url: str) -> str:
    """The URL, if it is one for redis-py with no option that the fleet sets itself. Raises `ValueError`."""
    _check_address(url, _REDIS_SCHEMES)
    for option, _ in parse_qsl(urlsplit(url).query):
        if option not in _REDIS_OPTIONS:
            raise ValueError(f"must not have the option {option!r}; {', '.join(_REDIS_OPTIONS)} may be given")
    return url


def check_broker_url(url: str) -> str:
    """The URL, if Celery has a broker for it that a fleet can work with. Raises `ValueError`."""
    _check_address(url, _BROKER_SCHEMES)
    return url


def is_http_url(url: str) -> bool:
    """Whether a module can be there."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half of an IPv6 address
        return False


def _check_address(url: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        known, _ = parts.scheme in schemes, parts.port
    except ValueError:
        raise ValueError("must have a port that is a number up to 65535") from None
    if not known:
        raise ValueError(f"must start with {', '.join(f'{scheme}://' for scheme in schemes[:-1])} or {schemes[-1]}://")
