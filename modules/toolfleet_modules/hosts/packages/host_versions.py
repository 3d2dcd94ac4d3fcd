"""Lists the distributions that a tool process needs by itself, with their versions: tools get the same ones, or none."""

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_OWN = "toolfleet-sdk"


@cache
def host_versions() -> tuple[str, ...]:
    """Return `name==version` of all dependencies of the SDK, sorted."""
    found: dict[str, str] = {}
    left = [_OWN]
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        try:
            known = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = known.version
        for line in known.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))
