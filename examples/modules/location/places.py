"""The rows: where each user has said to be, one place for each channel of a platform."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Column, DateTime, Float, MetaData, String, Table, Text, delete, insert, select

from modules.files.database import Database, turn_of
from modules.location.globe import Point

METADATA = MetaData()
PLACES = Table(
    "location_places",
    METADATA,
    Column("key", String(64), primary_key=True),  # a digest of user, platform and channel
    Column("user_id", Text, nullable=False, index=True),  # as `owner_of` writes it
    Column("name", Text, nullable=False),
    Column("latitude", Float),
    Column("longitude", Float),
    Column("said_at", DateTime, nullable=False),  # UTC
)


@dataclass(frozen=True, slots=True)
class Where:
    """Whose place, and where it was said. Nobody else in another channel gets to know it, nor the same user there."""

    owner: str  # as `owner_of` writes it
    platform: str | None
    channel: str | None

    @property
    def key(self) -> str:
        """The same for the same user and channel; no two share one."""
        return hashlib.sha256(json.dumps([self.owner, self.platform, self.channel]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Place:
    """What a user has said. Without a `point` it is a name, and no more is known."""

    name: str
    point: Point | None
    said_at: datetime  # UTC


class Places:
    """All methods block, and raise `FilesUnavailable`. What was said longer ago than `kept` is no longer known."""

    def __init__(self, database: Database, *, kept: timedelta) -> None:
        self._database = database
        self._kept = kept

    def say(self, where: Where, name: str, point: Point | None) -> Place:
        """Remember a place over the one that was said there before; forget what is too old."""
        place = Place(name, point, _now())
        coordinates = {} if point is None else {"latitude": point.latitude, "longitude": point.longitude}
        row = {"key": where.key, "user_id": where.owner, "name": name, "said_at": place.said_at.replace(tzinfo=None)}
        with self._database.writing(turn_of(f"places of {where.owner}")) as connection:
            is_old = (PLACES.c.user_id == where.owner) & (PLACES.c.said_at < self._oldest())
            connection.execute(delete(PLACES).where((PLACES.c.key == where.key) | is_old))
            connection.execute(insert(PLACES).values(row | coordinates))
        return place

    def find(self, where: Where) -> Place | None:
        """What was said last there."""
        wanted = (PLACES.c.key == where.key) & (PLACES.c.said_at >= self._oldest())
        with self._database.reading() as connection:
            row = connection.execute(select(PLACES).where(wanted)).first()
        if row is None:
            return None
        point = None if row.latitude is None else Point(row.latitude, row.longitude)
        return Place(row.name, point, row.said_at.replace(tzinfo=UTC))

    def forget(self, where: Where) -> bool:
        """Forget it. Returns whether there was one."""
        with self._database.writing(turn_of(f"places of {where.owner}")) as connection:
            return connection.execute(delete(PLACES).where(PLACES.c.key == where.key)).rowcount > 0

    def _oldest(self) -> datetime:
        return (_now() - self._kept).replace(tzinfo=None)


def _now() -> datetime:
    return datetime.now(UTC)
