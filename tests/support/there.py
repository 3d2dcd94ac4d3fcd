"""What must be there in a test, for tests and type checkers alike."""

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """Return the value, which is not None."""
    assert value is not None
    return value
