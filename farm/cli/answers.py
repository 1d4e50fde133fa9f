"""The farm's answers, read into the nouns. Pydantic is loaded with the first answer."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from farm.cli.show import shown
from farm.errors import FarmError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_Made = TypeVar("_Made")


def read(kind: type[_Made], value: Any) -> _Made:
    """JSON from the API as a dataclass. Fields that this version does not know are dropped.

    Raises FarmError when it does not fit: client and server are too far apart.
    """
    from pydantic import ValidationError

    try:
        made: _Made = _adapter(cast(Any, kind)).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise FarmError(
            f"the farm's answer cannot be read ({shown(place, 60)}: {first['msg']}): "
            "is it another version? see `farm version`"
        ) from error
    return made


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
