"""The error hierarchy of gpuplane. `gpuplane.problems` maps it to HTTP.

    GpuplaneError
    ├── BadInput            400  a value breaks a rule: `field` and `rule` say which
    │   └── TooLarge        413
    ├── NotAllowed          403  signed in, but not for this object
    ├── NotFound            404
    ├── Conflict            409  the world moved, or something else holds it
    │   └── DoesNotFit      409  REST claims only: no devices now (elsewhere this is a Decision)
    ├── TooCostly           422  it was understood, and needs more than one request may have
    ├── TooManyUnderWay     429  the caller has as much under way as one may have
    ├── TookTooLong         504  it was ended at its deadline
    └── Unavailable         503  temporary: the caller may try again later

Errors of the Kubernetes API have their own tree in `kube.errors`. "It does not fit" inside the
engine is a Decision, not an exception.
"""


class GpuplaneError(Exception):
    """Root of the hierarchy. `str(error)` is a message for users.

    `field` is the path of a value that breaks a rule (`spec.devices.count`), `rule` a short stable name.
    """

    def __init__(self, message: str = "", *, field: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.rule = rule


class BadInput(GpuplaneError):
    """A value breaks a rule."""


class TooLarge(BadInput):
    """A body or list over its limit."""


class NotAllowed(GpuplaneError):
    """The caller is known but may not do this."""


class NotFound(GpuplaneError):
    """No such object."""


class Conflict(GpuplaneError):
    """The object changed, or is in a state that forbids this."""


class DoesNotFit(Conflict):
    """A claim over REST found no devices; the message carries the engine's summary."""


class TooCostly(GpuplaneError):
    """A request needs more than one may have."""


class TooManyUnderWay(GpuplaneError):
    """The caller has as much under way as one may have."""

    def __init__(self, message: str, *, rule: str, retry_after_seconds: int) -> None:
        super().__init__(message, rule=rule)
        self.retry_after_seconds = retry_after_seconds


class TookTooLong(GpuplaneError):
    """The work was ended at its deadline."""


class Unavailable(GpuplaneError):
    """Temporary: a part we need is down. Safe to try again."""
