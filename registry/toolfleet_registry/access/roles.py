"""Decides what a user may do as an operator: four roles, one order.

A role says nothing of the tools that its holder may call, and the permission to call tools gives no role.
"""

from typing import Final, Literal, get_args

Role = Literal["none", "viewer", "operator", "admin"]
"""What somebody may do to the fleet itself: nothing; see how it is; change tools, calls and modules; and make API keys, too."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""All of them, the lowest first."""


def role_of(text: object) -> Role:
    """The role of that name. An unknown one counts as `none`: a typo must not give rights."""
    return ROLES[ROLES.index(text)] if text in ROLES else "none"


def has_role(role: Role, needed: Role) -> bool:
    """Return whether a role includes what another one may do."""
    return ROLES.index(role) >= ROLES.index(needed)
