"""Changes and reads a registry inside Redis, in Lua; `redis_changes.py` says what is stored, and under which keys.

The tools are a hash, name -> five lines: `1` if enabled or `0`, digest, when it was registered (JSON; a number is seconds
since the epoch), version (JSON), specification (JSON). JSON text has no line feeds, and none of it is read in scripts but for
the mark of a rollback before it (`rules.marked`). The earlier versions are a hash, name -> the last four of these lines for
each specification, the latest first; of tools that only ever had one, it has nothing.
The pins are a hash, `["module","tool"]` -> digest, and `["module"]` -> nothing: pinned, if only to no digest at all.
The revision is a hash: `epoch` (ms: the first change), `revision`, `events`: how many there were of each; and
`identity`.

Scripts that change something have the rules of `rules.py`, in Lua. Their keys are all five: the tools, the events, the revision,
the pins, the earlier versions.
"""

from toolfleet_registry.lua.files import script

KNOWN = script("store/known")

VERSIONS = script("store/versions")

SNAPSHOT = script("store/snapshot")

MANIFEST_DIGESTS = script("store/manifest_digests")

KEEP_MODULES = script("store/keep_modules")

IDENTITY = script("store/identity")

REGISTER = script("store/register")
"""Returns for each: `drift`, `unreadable`; or four lines: `taken`, whether it is enabled, when it was registered, the mark of its
rollback; or, of one that was rolled back from this version, `stays` and all that is stored.
"""

REPLACE = script("store/replace")
"""Returns as REGISTER, or `unexpected`."""

SWITCH = script("store/switch")
"""Returns what is stored then, `unreadable`, or nothing if there is no such tool."""

ROLLBACK = script("store/rollback")
"""Returns what is stored then, `unknown`, or nothing if there is no such tool."""

NOTE = script("store/note")

REMOVE = script("store/remove")

PIN = script("store/pin")

APPROVE = script("store/approve")
"""Returns 0 if the module is not pinned."""

RESTORE = script("store/restore")
