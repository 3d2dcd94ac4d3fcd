"""Connects to everything that is reached by TLS, and reports certificates that are refused or expire soon."""

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.finding import CheckResult, Diagnosis, error, warning
from toolfleet_registry.settings import Settings
from toolfleet_registry.time import machine_clock

_CONNECT_SECONDS = 3.0
_SOON_DAYS, _VERY_SOON_DAYS = 30, 7
_DAY = 86_400
_PORTS = {"https": 443, "rediss": 6379, "amqps": 5671}
_RENEW = "Renew the certificate there: openssl s_client -connect {place} </dev/null | openssl x509 -noout -dates"


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """As a process of the fleet would verify them, with the authorities that the URL names or this machine has."""

    name: str = "certificates"
    asks_redis: bool = False
    seconds: float = 15.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        places = sorted(_places(patient.settings))
        results = await asyncio.gather(*(_days_left(*place) for place in places))
        findings, facts = list[Diagnosis](), dict[str, float | str]()
        for (host, port, _), result in zip(places, results, strict=True):
            facts[f"{host}:{port}"] = result
            findings += _findings(f"{host}:{port}", result)
        return CheckResult(tuple(findings), {"days_left": facts})


def _places(settings: Settings) -> set[tuple[str, int, str]]:
    """Host, port, and the file of authorities or ''."""
    urls = [settings.redis_url, settings.broker_url, settings.core_url, *settings.module_services.values()]
    found = set[tuple[str, int, str]]()
    for url in urls:
        parts = urlsplit(url or "")
        port = _PORTS.get(parts.scheme)
        options = parse_qs(parts.query)
        if port is None or not parts.hostname or options.get("ssl_cert_reqs") == ["none"]:
            continue
        found.add((parts.hostname, parts.port or port, options.get("ssl_ca_certs", [""])[0]))
    return found


async def _days_left(host: str, port: int, authorities: str) -> float | str:
    """Return for how many more days its certificate is valid, or why that is unknown."""
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        certificate = writer.get_extra_info("peercert") or {}
        writer.transport.abort()
    except ssl.SSLCertVerificationError as exc:
        return f"refused: {exc.verify_message}"
    except (OSError, ssl.SSLError) as exc:
        return f"not reached: {exc or 'no answer'}"
    return (ssl.cert_time_to_seconds(certificate["notAfter"]) - machine_clock.wall()) / _DAY


def _findings(place: str, result: float | str) -> Iterable[Diagnosis]:
    mend = _RENEW.format(place=place)
    if isinstance(result, str):
        if result.startswith("refused"):
            text = f"The certificate of {place} is {result}."
            yield error(text, "Nobody who verifies it connects there.", mend)
        return  # who is not reached at all is another check's
    if result < _SOON_DAYS:
        make = error if result < _VERY_SOON_DAYS else warning
        yield make(
            f"The certificate of {place} ends in {result:.0f} days.", "From then on nobody connects there.", mend
        )
