"""A script that runs inside Redis, and its name there: the second time, the name is all that is sent."""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """`text` is Lua. `digest` is what Redis calls it, once it has seen it."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())
