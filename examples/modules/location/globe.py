"""Reckons on a globe: how far it is from one point to another, and which way."""

from dataclasses import dataclass
from math import asin, atan2, cos, degrees, radians, sin, sqrt

_EARTH_KM = 6371.0088  # the mean radius; the earth being no ball, the result may be off by half a per cent
_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")


@dataclass(frozen=True, slots=True)
class Point:
    """In degrees: north and east are positive."""

    latitude: float
    longitude: float


def kilometres(start: Point, end: Point) -> float:
    """The shortest way over the ground."""
    north, south = radians(start.latitude), radians(end.latitude)
    up, along = radians(end.latitude - start.latitude), radians(end.longitude - start.longitude)
    chord = sin(up / 2) ** 2 + cos(north) * cos(south) * sin(along / 2) ** 2
    return 2 * _EARTH_KM * asin(min(1.0, sqrt(chord)))


def direction(start: Point, end: Point) -> str:
    """Where that way sets out to, as one of eight winds."""
    here, there = radians(start.latitude), radians(end.latitude)
    along = radians(end.longitude - start.longitude)
    bearing = atan2(sin(along) * cos(there), cos(here) * sin(there) - sin(here) * cos(there) * cos(along))
    return _WINDS[round(degrees(bearing) / 45) % 8]
