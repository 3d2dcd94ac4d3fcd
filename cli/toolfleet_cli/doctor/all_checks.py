"""Lists the checks of the doctor, in the order in which their results are shown."""

from collections.abc import Sequence

from toolfleet_cli.doctor.check import Check
from toolfleet_cli.doctor.checks.canary import CanaryCheck
from toolfleet_cli.doctor.checks.certificates import CertificateCheck
from toolfleet_cli.doctor.checks.clocks import ClockCheck
from toolfleet_cli.doctor.checks.fleet_secrets import SecretCheck
from toolfleet_cli.doctor.checks.ignored_settings import SettingCheck
from toolfleet_cli.doctor.checks.leases import LeaseCheck
from toolfleet_cli.doctor.checks.manifests import ManifestCheck
from toolfleet_cli.doctor.checks.queues import QueueCheck
from toolfleet_cli.doctor.checks.rabbitmq import RabbitCheck
from toolfleet_cli.doctor.checks.redis_rights import RightsCheck
from toolfleet_cli.doctor.checks.redis_server import RedisCheck
from toolfleet_cli.doctor.checks.stored_keys import KeyCheck
from toolfleet_cli.doctor.checks.versions import VersionCheck
from toolfleet_cli.doctor.checks.workers import WorkerCheck

ALL: Sequence[Check] = (
    RedisCheck(),
    RightsCheck(),
    RabbitCheck(),
    WorkerCheck(),
    QueueCheck(),
    CanaryCheck(),
    ManifestCheck(),
    LeaseCheck(),
    VersionCheck(),
    ClockCheck(),
    KeyCheck(),
    CertificateCheck(),
    SecretCheck(),
    SettingCheck(),
)
"""Each is independent of the others."""
