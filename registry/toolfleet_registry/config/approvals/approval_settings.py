"""Declares the setting of approvals' channels; a part of `Settings`."""

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

from toolfleet_registry.config.approvals.approval_channels import ApprovalChannels
from toolfleet_registry.config.setting_values import read_json


class ApprovalSettings(BaseSettings, defer_build=True):
    """Who hears of approvals outside of the fleet, and decides there."""

    approvals: Annotated[ApprovalChannels, NoDecode] = Field(default=ApprovalChannels.model_construct(), repr=False)
    """`[approvals]` with `webhooks` (each `url`, `secret` and perhaps `events`) and `approvers` (name -> `secret`, `user_id` and `permission`); or JSON. Workers need the webhooks, gateways the approvers. Secrets are named, and read as those of hosts."""

    @field_validator("approvals", mode="before")
    @classmethod
    def _read_approvals(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value
