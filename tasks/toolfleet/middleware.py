"""Exports what your own middleware classes receive and return. The guide to agents shows how to write one."""

from toolfleet_registry.agents.own_classes import AttemptMiddleware, CallMiddleware, ProceedWithCall
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Attempt, Outcome

__all__ = ["Attempt", "AttemptMiddleware", "CallMiddleware", "Outcome", "ProceedWithCall", "PublishedCall"]
