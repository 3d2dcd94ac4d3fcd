"""The doctor's look at certificates: whose ends soon, whose is refused, and that nobody else is spoken of."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.programs.closed_port import closed_port
from support.streams.stream_server import stream_server
from toolfleet_cli.doctor.check import CheckResult, Patient
from toolfleet_cli.doctor.settings import check_certificates
from toolfleet_cli.local.redis_server import LOOPBACK
from toolfleet_registry.settings import Settings


def make_certificate(folder: Path, *, days: float) -> Path:
    """A file with a certificate of its own authority, which ends in so many days, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "owls")])
    now = dt.datetime.now(dt.UTC)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=90))
        .not_valid_after(now + dt.timedelta(days=days, hours=1))
        .add_extension(place, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "certificate.pem"
    file.write_bytes(secret + made.public_bytes(pem))
    return file


@asynccontextmanager
async def serving(certificate: Path) -> AsyncGenerator[int]:
    """Whatever speaks TLS with this certificate, at the port that this yields."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        """Say nothing."""

    async with stream_server(hang_up, tls=context) as port:
        yield port


async def examined(url: str) -> CheckResult:
    """What the doctor finds in a fleet whose Redis is there."""
    return await check_certificates(Patient(Settings(redis_url=url), environ={}))


@pytest.mark.parametrize(
    ("days", "found"), [(90, []), (20, [("warning", "20 days")]), (3, [("error", "3 days")])], ids=str
)
async def test_a_certificate_that_ends_soon_is_a_finding(
    tmp_path: Path, days: int, found: list[tuple[str, str]]
) -> None:
    """Within a month it is a warning, within a week an error; the command that shows its dates names the place."""
    certificate = make_certificate(tmp_path, days=days)
    async with serving(certificate) as port:
        result = await examined(f"rediss://{LOOPBACK}:{port}/0?ssl_ca_certs={certificate}")

    said = [(finding.severity, finding.what.partition("ends in ")[2].rstrip(".")) for finding in result.findings]
    assert said == found
    assert all(f"-connect {LOOPBACK}:{port} " in finding.fix for finding in result.findings)
    assert int(result.facts["days_left"][f"{LOOPBACK}:{port}"]) == days


@pytest.mark.parametrize(("days", "is_known"), [(90, False), (-1, True)], ids=["of a stranger", "ended"])
async def test_a_certificate_that_is_refused_is_an_error(tmp_path: Path, days: int, is_known: bool) -> None:
    """As a process of the fleet would refuse it: by an authority that nobody knows here, or after its end."""
    certificate = make_certificate(tmp_path, days=days)
    async with serving(certificate) as port:
        options = f"?ssl_ca_certs={certificate}" if is_known else ""
        (finding,) = (await examined(f"rediss://{LOOPBACK}:{port}/0{options}")).findings

    assert finding.severity == "error"
    assert finding.what.startswith(f"The certificate of {LOOPBACK}:{port} is refused: ")


async def test_whoever_is_not_reached_or_not_to_be_verified_is_no_finding(tmp_path: Path) -> None:
    """The first is another check's to say; the second is what the operator has chosen."""
    certificate = make_certificate(tmp_path, days=3)
    async with serving(certificate) as port:
        chosen = await examined(f"rediss://{LOOPBACK}:{port}/0?ssl_cert_reqs=none")
    away = await examined(f"rediss://{LOOPBACK}:{closed_port()}/0")

    assert (chosen.findings, chosen.facts) == ((), {"days_left": {}})
    assert away.findings == ()
    assert [text[:11] for text in away.facts["days_left"].values()] == ["not reached"]
