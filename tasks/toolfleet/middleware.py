"""Defines what classes of one's own get and return that stand around an agent's calls: the guide to agents says how."""

from toolfleet_registry.agents.own_classes import AttemptMiddleware, CallMiddleware, ProceedWithCall
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Attempt, Outcome

__all__ = ["Attempt", "AttemptMiddleware", "CallMiddleware", "Outcome", "ProceedWithCall", "PublishedCall"]
