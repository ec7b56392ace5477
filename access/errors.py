"""The error hierarchy of gpuplane's own rooms. `gpuplane.problems` turns it into HTTP in one table.

    GpuplaneError
    ├── BadInput            400  a value breaks a rule: `field` and `rule` say which
    │   └── TooLarge        413
    ├── NotAllowed          403  signed in, but not for this object
    ├── NotFound            404
    ├── Conflict            409  the world moved, or something else holds it
    │   └── DoesNotFit      409  REST claims only: no devices now (elsewhere this is a Decision)
    ├── TooCostly           422  it was understood, and needs more than one request may have
    ├── TooMany             429  the caller has as much under way as one may have
    ├── TookTooLong         504  it was ended at its deadline
    └── Unavailable         503  temporary: the caller may try again later

Errors of the Kubernetes API have their own tree in `kube.errors`. "It does not fit" inside the
engine is a Decision, not an exception.
"""


class GpuplaneError(Exception):
    """Root of everything gpuplane raises on purpose. `str(error)` is a sentence for a person."""


class BadInput(GpuplaneError):
    """A value breaks a rule.

    `field` is the path of the value (`spec.devices.count`), `rule` a short stable name.
    """

    def __init__(self, message: str, *, field: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.rule = rule


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
    """A request needs more than one may have. `rule` is a short stable name of what."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class TooMany(GpuplaneError):
    """The caller has as much under way as one may have."""

    def __init__(self, message: str, *, rule: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.rule = rule
        self.retry_after_seconds = retry_after_seconds


class TookTooLong(GpuplaneError):
    """The work was ended at its deadline."""

    def __init__(self, message: str, *, rule: str = "deadline") -> None:
        super().__init__(message)
        self.rule = rule


class Unavailable(GpuplaneError):
    """Temporary: a part we need is down. Safe to try again."""
