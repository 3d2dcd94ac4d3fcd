"""The addresses of pages that any fleet of owls has, for tests that ask each of them."""

from typing import Final

PAGES: Final = (
    "/",
    "/calls",
    "/conversation?id=talk",
    "/approvals",
    "/dead-letters",
    "/modules",
    "/modules/owls",
    "/tools",
    "/tools/owls.echo",
    "/jobs",
    "/wake-ups",
    "/queues",
    "/limits?user=ada",
    "/agents",
    "/errors",
    "/audit",
    "/keys",
)
