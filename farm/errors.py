"""FarmError
+ UserError      the request is wrong; the text says what and what to do, and is shown as it is
    + NotFound       no such job, task, node
    + Forbidden      the token may not do this
+ Rejected       a right request at the wrong moment: stale lease, ended job
    + NotLeader      this process no longer leads; nothing was written
    + TooMany        asked too often: wait
+ Unavailable    store, broker or server cannot be reached; safe to try again
+ IllegalMove    a bug in the farm; never caught
"""

from __future__ import annotations


class FarmError(Exception):
    """Any error that the farm raises on purpose."""


class UserError(FarmError):
    """The request is wrong."""


class NotFound(UserError):
    """There is no such thing."""


class Forbidden(UserError):
    """The caller may not do this."""


class Rejected(FarmError):
    """A right request at the wrong moment."""


class NotLeader(Rejected):
    """This process no longer leads; nothing was written."""


class TooMany(Rejected):
    """Asked too often; the text says for how long nothing is taken."""


class Unavailable(FarmError):
    """The other side cannot be reached; safe to try again."""


class IllegalMove(FarmError):
    """A bug in the farm; never caught."""
