"""Declares the settings of how modules are reached, and where those may be that are added; a part of `Settings`."""

from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.setting_values import read_json
from toolfleet_registry.headers.rules import check_headers


class ModuleSettings(BaseSettings, defer_build=True):
    """Where modules may be, and what they are sent with each request."""

    module_headers: Annotated[dict[str, dict[str, SecretStr]], NoDecode] = Field(default={}, repr=False)
    """JSON: module name -> header -> value, sent with each request to the module, such as `Authorization` with a token. For workers: an
    agent asks modules only where there is no fleet. Never logged or shown; read at start."""

    module_networks: Annotated[tuple[str, ...], NoDecode] = Field(default=())
    """CIDRs in which they may be, comma-separated or JSON, as whoever may add one could else have workers ask any address that they
    reach. None: everywhere but at link-local and cloud metadata addresses, of which those count that a CIDR names."""

    @field_validator("module_headers", mode="before")
    @classmethod
    def _check_headers(cls, value: Any) -> Any:
        return check_headers(read_json(value) if isinstance(value, str) else value)

    @field_validator("module_networks", mode="before")
    @classmethod
    def _read_networks(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return read_json(value)
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("module_networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError as exc:
                raise ValueError(f"{network!r} is no network such as 10.0.0.0/8 or fd00::/8") from exc
        return networks
