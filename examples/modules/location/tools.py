"""The tools of `location`. Which conversation they are asked in, the context says: a model can neither choose nor see it."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from modules.files.names import owner_of, visible_line
from modules.location.globe import Point, direction, kilometres
from modules.location.places import Place, Places, Where
from toolfleet.sdk import Context, ToolError

_NOT_SAID = "The user has not said in this conversation where they are; ask, and save the answer with set_place."

Name = Annotated[str, Field(min_length=1, max_length=200)]
Latitude = Annotated[float, Field(ge=-90, le=90, allow_inf_nan=False)]
Longitude = Annotated[float, Field(ge=-180, le=180, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Location:
    """Each user's place in each channel. Everything may raise `FilesUnavailable`, after some seconds."""

    places: Places

    def set_place(
        self,
        name: Name,
        user_id: str | None,
        context: Context,
        latitude: Latitude | None = None,
        longitude: Longitude | None = None,
    ) -> dict[str, Any]:
        """Remember where the user is, as they have said in this conversation. Replaces what they said there before.

        Args:
            name: The place in words, such as 'Berlin, Alexanderplatz'.
            latitude: In degrees, north positive, such as 52.52. Give it with longitude, or leave both out.
            longitude: In degrees, east positive, such as 13.41.
        """
        if (latitude is None) != (longitude is None):
            raise _refused("Give latitude and longitude both, or neither.")
        point = None if latitude is None or longitude is None else Point(latitude, longitude)
        return _shown(self.places.say(_where(user_id, context), _line(name), point))

    def where_am_i(self, user_id: str | None, context: Context) -> dict[str, Any]:
        """Say where the user has last said to be, in this conversation's channel, and when."""
        return _shown(self._known(user_id, context))

    def distance(
        self, latitude: Latitude, longitude: Longitude, user_id: str | None, context: Context
    ) -> dict[str, Any]:
        """Reckon how far a point is from where the user has said to be, and in which direction; as the crow flies.

        Args:
            latitude: In degrees, north positive.
            longitude: In degrees, east positive.
        """
        place = self._known(user_id, context)
        if place.point is None:
            raise _refused(
                f"Only the name of the user's place is known, {place.name!r}; set_place with its coordinates."
            )
        there = Point(latitude, longitude)
        return {
            "from": place.name,
            "kilometres": round(kilometres(place.point, there), 1),
            "direction": direction(place.point, there),
        }

    def share(self, user_id: str | None, context: Context) -> dict[str, Any]:
        """Write the user's place down as a message for this conversation, with a link if its coordinates are known.

        It sends nothing: say the text, or hand it to a tool that sends messages.
        """
        place = self._known(user_id, context)
        conversation = context.conversation
        return {
            "text": f"📍 {place.name}" if place.point is None else f"📍 {place.name}: {_link(place.point)}",
            "platform": conversation.platform,
            "channel": conversation.platform_channel_id,
            "thread": conversation.platform_thread_id,
        }

    def forget_place(self, user_id: str | None, context: Context) -> dict[str, Any]:
        """Forget where the user has said to be, in this conversation's channel. Forgetting nothing does nothing."""
        return {"forgotten": self.places.forget(_where(user_id, context))}

    def _known(self, user_id: str | None, context: Context) -> Place:
        place = self.places.find(_where(user_id, context))
        if place is None:
            raise _refused(_NOT_SAID)
        return place


def _where(user_id: str | None, context: Context) -> Where:
    if not user_id:
        raise _refused("Places belong to a user, and this call has no user_id.")
    # Not the thread: whoever reads one thread of a channel reads the others.
    return Where(owner_of(user_id), context.conversation.platform, context.conversation.platform_channel_id)


def _shown(place: Place) -> dict[str, Any]:
    point = {} if place.point is None else {"latitude": place.point.latitude, "longitude": place.point.longitude}
    return {"place": place.name, **point, "said_at": place.said_at.isoformat(timespec="seconds")}


def _link(point: Point) -> str:
    latitude, longitude = f"{point.latitude:.5f}", f"{point.longitude:.5f}"
    return f"https://www.openstreetmap.org/?mlat={latitude}&mlon={longitude}#map=15/{latitude}/{longitude}"


def _line(name: str) -> str:
    """Without what is invisible: other people read it."""
    line = visible_line(name)
    if line is None:
        raise _refused(f"{name!r} is no place's name: it must be one line of visible characters.")
    return line


def _refused(message: str) -> ToolError:
    return ToolError(message, effect_state="none")
