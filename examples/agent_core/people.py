"""Who may do what: users' permissions and personas' modules, in the database of the conversations, read anew for each turn."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from agent_core.conversations import Finish, Talk
from agent_core.settings import AgentSettings
from agent_core.tables import CONVERSATION_PERSONAS, CONVERSATIONS, PERSONAS, USERS
from toolfleet import Caller
from toolfleet_registry.contracts import Level
from toolfleet_registry.permissions import Modules, level_fault

logger = logging.getLogger(__name__)

_MOST_SHOWN = 10  # users in a line of the log
_TRIES = 3  # another process may write the same row at the same time


class UnknownPersona(Exception):
    """There is no persona of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no persona {name!r}.")


class People:
    """The users and personas of one database. Its async calls are made in threads; the others block."""

    def __init__(self, engine: Engine, settings: AgentSettings) -> None:
        self._engine = engine
        self._settings = settings

    def fill(self) -> None:
        """Write the settings' permissions into a table that is empty; say so where they differ from one that is not."""
        wanted = self._settings.permissions
        rows = [{"id": user_id, "permission_level": level} for user_id, level in wanted.items()]
        try:
            with self._engine.begin() as connection:
                known = dict(_pairs(connection, select(USERS.c.id, USERS.c.permission_level)))
                if rows and not known:
                    connection.execute(insert(USERS), rows)
                    return
        except IntegrityError:  # another process has just filled it
            return
        if other := sorted(user_id for user_id, level in wanted.items() if known.get(user_id) != level):
            shown = ", ".join(other[:_MOST_SHOWN])
            logger.warning("AGENT_PERMISSIONS only fills an empty table; in it, others hold for %s", shown)

    async def caller(self, talk: Talk) -> Caller:
        """What the fleet lets the user of a conversation do now, under its persona."""
        return await asyncio.to_thread(self._caller, talk)

    async def check_persona(self, name: str) -> None:
        """Raise `UnknownPersona` unless there is one."""
        if name not in await asyncio.to_thread(self.personas):
            raise UnknownPersona(name)

    def entering(self, talk: Talk, persona: str) -> Finish:
        """What puts a conversation under a persona, in the transaction that takes in the message which names it."""

        def enter(connection: Connection) -> None:
            key = CONVERSATION_PERSONAS.c.conversation_id == talk.id
            connection.execute(delete(CONVERSATION_PERSONAS).where(key))
            connection.execute(insert(CONVERSATION_PERSONAS).values(conversation_id=talk.id, persona=persona))

        return enter

    def promote(self, user_id: str, level: Level) -> None:
        """Give a user this permission, higher or lower than before, whether they have ever said a word or not."""
        self._write(USERS, {"id": user_id}, {"permission_level": level})

    def users(self) -> dict[str, str]:
        """Permissions by user id, sorted: of those in the table."""
        with self._engine.connect() as connection:
            return dict(sorted(_pairs(connection, select(USERS.c.id, USERS.c.permission_level))))

    def speakers(self) -> list[str]:
        """The ids of all who have ever said something, sorted."""
        with self._engine.connect() as connection:
            return sorted(connection.execute(select(CONVERSATIONS.c.user_id).distinct()).scalars())

    def set_persona(self, name: str, modules: Sequence[str] | None) -> None:
        """Make a persona, or change it. `None`: it reaches all modules."""
        self._write(PERSONAS, {"name": name}, {"allowed_modules": None if modules is None else list(modules)})

    def personas(self) -> dict[str, Modules]:
        """The modules that each persona reaches, by name, sorted; `"*"` for all."""
        with self._engine.connect() as connection:
            pairs = sorted(_pairs(connection, select(PERSONAS.c.name, PERSONAS.c.allowed_modules)))
        return {name: _modules(value) for name, value in pairs}

    def _caller(self, talk: Talk) -> Caller:
        level = select(USERS.c.permission_level).where(USERS.c.id == talk.user_id)
        persona = (
            select(CONVERSATION_PERSONAS.c.persona, PERSONAS.c.name, PERSONAS.c.allowed_modules)
            .join_from(
                CONVERSATION_PERSONAS, PERSONAS, CONVERSATION_PERSONAS.c.persona == PERSONAS.c.name, isouter=True
            )
            .where(CONVERSATION_PERSONAS.c.conversation_id == talk.id)
        )
        with self._engine.connect() as connection:
            permission = connection.execute(level).scalar() or self._settings.permission
            row = connection.execute(persona).first()
        if row is None:
            modules: Modules | None = None
        else:
            modules = frozenset[str]() if row.name is None else _modules(row.allowed_modules)
        # What somebody has written into the table by hand gives no rights by mistake.
        known = permission if level_fault(permission) is None else "guest"
        return Caller.model_validate({"user_id": talk.user_id, "permission": known, "allowed_modules": modules})

    def _write(self, table: Table, key: dict[str, str], fields: dict[str, Any]) -> None:
        """Change the row of this key, or make it."""
        is_it = and_(*(table.c[name] == value for name, value in key.items()))
        for _ in range(_TRIES):
            try:
                with self._engine.begin() as connection:
                    if not connection.execute(update(table).where(is_it).values(fields)).rowcount:
                        connection.execute(insert(table).values(key | fields))
            except IntegrityError:
                continue
            return


def _pairs(connection: Connection, statement: Select[Any, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in connection.execute(statement)]


def _modules(value: object) -> Modules:
    """What stands in the table. Fails closed: what is no list of names reaches nothing."""
    if value is None:
        return "*"
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()
