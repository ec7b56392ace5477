"""Errors of the Kubernetes API.

    KubeError
    ├── TemporaryKubeError      may succeed when tried again
    │   ├── Unreachable         no connection, or a read without an answer: surely not applied
    │   ├── Throttled           429: surely not applied; `retry_after` in seconds, if given
    │   ├── ServerBusy          5xx on a read
    │   └── OutcomeUnknown      a write was sent and its answer is lost or a 5xx: it may have been applied
    └── PermanentKubeError      the same request gets the same answer
        ├── NotConfigured       no usable kubeconfig, not in a cluster
        ├── NotFoundInCluster   404
        ├── AlreadyExists       409 on a create
        ├── ConflictInCluster   409: stale resourceVersion, failed precondition, already bound
        ├── Gone                410: resourceVersion or continue token too old
        ├── Denied              401, 403
        ├── Invalid             400, 422 and the other 4xx
        └── Unintelligible      an answer that cannot be decoded

Invariants: only the temporary errors other than OutcomeUnknown guarantee that nothing changed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec
import urllib3.exceptions

from kube.text import without_nul


class StatusCause(msgspec.Struct, frozen=True):
    """One cause of a refusal: the field and what is wrong with it."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", frozen=True):
    """details of a Status."""

    name: str = ""
    kind: str = ""
    retry_after_seconds: int | None = None
    causes: list[StatusCause] | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status, the body of an error answer."""

    code: int | None = None
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


_STATUS = msgspec.json.Decoder(Status)


class KubeError(Exception):
    """`code`: HTTP status, None without an answer; `reason`: that of the Status; `request`: method and path."""

    def __init__(
        self, message: str, *, code: int | None = None, request: str = "", status: Status | None = None
    ) -> None:
        super().__init__(f"{request}: {message}" if request else message)
        self.message = message
        self.code = code
        self.request = request
        self.reason = status.reason if status else ""
        self.details = (status.details if status else None) or StatusDetails()

    def caused_by(self, reason: str) -> bool:
        """Whether the Status gives this reason among its causes."""
        return any(cause.reason == reason for cause in self.details.causes or ())


class TemporaryKubeError(KubeError):
    """May succeed later."""


class Unreachable(TemporaryKubeError):
    """Nothing was applied: the request never left, or it was a read."""


class Throttled(TemporaryKubeError):
    """429, from the server's own limits or from a disruption budget. Nothing was applied."""

    def __init__(self, message: str, *, retry_after: float | None = None, **about: Any) -> None:
        super().__init__(message, **about)
        self.retry_after = retry_after

    @property
    def by_disruption_budget(self) -> bool:
        """Whether a PodDisruptionBudget refused an eviction."""
        return self.caused_by("DisruptionBudget")


class ServerBusy(TemporaryKubeError):
    """5xx on a read."""


class OutcomeUnknown(TemporaryKubeError):
    """The write may have been applied."""


class PermanentKubeError(KubeError):
    """Repeating the request as it is will not help."""


class NotConfigured(PermanentKubeError):
    """No readable kubeconfig, and no mounted ServiceAccount."""


class NotFoundInCluster(PermanentKubeError):
    """404. `details.kind` is what is missing (the plural: `pods`, `namespaces`); empty where the path is unknown."""


class AlreadyExists(PermanentKubeError):
    """409: an object of that name exists."""


class ConflictInCluster(PermanentKubeError):
    """409: the object is not as the request assumed."""


class Gone(PermanentKubeError):
    """410: the resourceVersion is compacted away; list again."""


class Denied(PermanentKubeError):
    """401 or 403."""


class Invalid(PermanentKubeError):
    """The request breaks a rule of the API; `details.causes` may name the fields."""


class Unintelligible(PermanentKubeError):
    """The answer is not the expected JSON, e.g. because another program answers."""


def from_answer(*, code: int, body: bytes, headers: Mapping[str, str], request: str, write: bool) -> KubeError:
    """The error for an HTTP answer with a code of 400 or more."""
    try:
        status = _STATUS.decode(without_nul(body))
    except msgspec.DecodeError:  # a proxy's page or a bare "404 page not found"
        status = Status(message=body[:200].decode(errors="replace").replace("\0", "\ufffd").strip())
    return from_status(
        status, code=code, request=request, write=write, retry_after=_seconds(headers.get("Retry-After"))
    )


def from_status(
    status: Status, *, code: int | None = None, request: str = "", write: bool = False, retry_after: float | None = None
) -> KubeError:
    """The error for a Status, of an answer or of an ERROR event of a watch. `write`: 5xx is `OutcomeUnknown`."""
    code = code or status.code or 500
    message = f"{code} {status.message or status.reason}".strip()
    kind: type[KubeError]
    if code == 429:
        if retry_after is None and status.details:
            retry_after = status.details.retry_after_seconds
        return Throttled(message, code=code, request=request, status=status, retry_after=retry_after)
    if code == 409:
        kind = AlreadyExists if status.reason == "AlreadyExists" else ConflictInCluster
    elif code in (408, *range(500, 600)) and code != 501:
        kind = OutcomeUnknown if write else ServerBusy
    else:
        kind = {401: Denied, 403: Denied, 404: NotFoundInCluster, 410: Gone}.get(code, Invalid)
    return kind(message, code=code, request=request, status=status)


def from_transport(error: Exception, *, request: str, write: bool) -> TemporaryKubeError:
    """The error for a urllib3 exception: `OutcomeUnknown` for a write that may have been sent, else `Unreachable`."""
    text = f"{type(error).__name__}: {error}"
    if write and not never_sent(error):
        return OutcomeUnknown(text, request=request)
    return Unreachable(text, request=request)


def never_sent(error: BaseException) -> bool:
    """Whether the failure came before the first byte of the request was sent.

    In TLS 1.3 the server's refusal of our certificate arrives afterwards, our refusal of its certificate before.
    """
    if isinstance(error, urllib3.exceptions.SSLError):
        return any(isinstance(part, ssl.SSLCertVerificationError) for part in (*error.args, error.__cause__))
    # PoolError's other child, RequestError, is the parent of ReadTimeoutError: that one was sent
    early = (
        urllib3.exceptions.ConnectTimeoutError,
        urllib3.exceptions.ProxyError,
        urllib3.exceptions.ClosedPoolError,
        urllib3.exceptions.EmptyPoolError,
        urllib3.exceptions.LocationValueError,
    )
    return isinstance(error, early)


def _seconds(value: str | None) -> float | None:
    """Retry-After in seconds, the only form that the API server sends."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return float(value)
