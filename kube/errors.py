"""What can go wrong between us and the Kubernetes API, as one tree.

    KubeError
    ├── TemporaryKubeError      worth another try, sooner or later
    │   ├── Unreachable         no connection, or a read without an answer: surely not applied
    │   ├── Throttled           429: surely not applied; `retry_after` in seconds, if told
    │   ├── ServerBusy          5xx on a read
    │   └── OutcomeUnknown      a write was sent and its answer is lost or a 5xx: applied or not, read to know
    └── PermanentKubeError      the same request gets the same answer
        ├── NotConfigured       no usable kubeconfig, not in a cluster
        ├── NotFoundInCluster   404
        ├── AlreadyExists       409 on a create
        ├── ConflictInCluster   409: stale resourceVersion, failed precondition, already bound
        ├── Gone                410: resourceVersion or continue token too old
        ├── Denied              401, 403
        ├── Invalid             400, 422 and the other 4xx
        └── Unintelligible      an answer that is not what the API promises

Raised by `kube.client` alone; callers in every room catch by type. Kept true: only the three temporary types
other than OutcomeUnknown promise that nothing changed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import msgspec
import urllib3.exceptions


class StatusCause(msgspec.Struct, frozen=True):
    """One cause of a refusal: the field and what is wrong with it."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", frozen=True):
    """details of a Status: the object spoken of, and when to come back."""

    name: str = ""
    kind: str = ""
    retry_after_seconds: int | None = None
    causes: list[StatusCause] | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status, the body of every refusal (kubernetes.io/docs/reference/kubernetes-api/common-definitions/status)."""

    code: int | None = None
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


_STATUS = msgspec.json.Decoder(Status)


class KubeError(Exception):
    """Root. `code` is the HTTP status (None without an answer), `reason` the API's own word, `request` the method and path."""

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

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        request: str = "",
        status: Status | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, request=request, status=status)
        self.retry_after = retry_after

    @property
    def by_disruption_budget(self) -> bool:
        """An eviction refused by a PodDisruptionBudget: trying again at once is in vain."""
        return self.caused_by("DisruptionBudget")


class ServerBusy(TemporaryKubeError):
    """5xx on a read."""


class OutcomeUnknown(TemporaryKubeError):
    """The write may have been applied. Read before undoing anything."""


class PermanentKubeError(KubeError):
    """Repeating the request as it is will not help."""


class NotConfigured(PermanentKubeError):
    """There is no cluster to speak to: no kubeconfig that can be read, and no ServiceAccount mounted."""


class NotFoundInCluster(PermanentKubeError):
    """404. `details.kind` tells what is missing (the plural: `pods`, `namespaces`); empty where the path itself is unknown."""


class AlreadyExists(PermanentKubeError):
    """409: an object of that name is there already, ours or a stranger's."""


class ConflictInCluster(PermanentKubeError):
    """409: the object is not, or no longer, as the request assumed."""


class Gone(PermanentKubeError):
    """410: what was asked for is compacted away; list again."""


class Denied(PermanentKubeError):
    """401 (who are you) or 403 (you may not)."""


class Invalid(PermanentKubeError):
    """The request breaks a rule of the API; `details.causes` may name the fields."""


class Unintelligible(PermanentKubeError):
    """The answer is not the JSON that was promised, e.g. another program answers on that address."""


def from_answer(*, code: int, body: bytes, headers: Mapping[str, str], request: str, write: bool) -> KubeError:
    """The error for an HTTP answer with a code of 400 or more. `write`: a 5xx leaves the outcome unknown."""
    try:
        status = _STATUS.decode(body)
    except msgspec.DecodeError:  # a proxy's page or a bare "404 page not found"
        status = Status(message=body[:200].decode(errors="replace").strip())
    return from_status(
        status, code=code, request=request, write=write, retry_after=_seconds(headers.get("Retry-After"))
    )


def from_status(
    status: Status, *, code: int | None = None, request: str = "", write: bool = False, retry_after: float | None = None
) -> KubeError:
    """The error for a Status body, from an answer or from an ERROR event of a watch (`code` then comes from the body)."""
    code = code or status.code or 500
    message = f"{code} {status.message or status.reason}".strip()
    kind: type[KubeError]
    if code == 429:
        told = status.details.retry_after_seconds if status.details else None
        wait = retry_after if retry_after is not None else told
        return Throttled(message, code=code, request=request, status=status, retry_after=wait)
    if code == 409:
        kind = AlreadyExists if status.reason == "AlreadyExists" else ConflictInCluster
    elif code in (408, *range(500, 600)) and code != 501:
        kind = OutcomeUnknown if write else ServerBusy
    else:
        kind = {401: Denied, 403: Denied, 404: NotFoundInCluster, 410: Gone}.get(code, Invalid)
    return kind(message, code=code, request=request, status=status)


def from_transport(error: Exception, *, request: str, write: bool) -> TemporaryKubeError:
    """The error for a urllib3 exception: `Unreachable` when the request surely was not applied, else `OutcomeUnknown`."""
    text = f"{type(error).__name__}: {error}"
    if write and not never_sent(error):
        return OutcomeUnknown(text, request=request)
    return Unreachable(text, request=request)


def never_sent(error: BaseException) -> bool:
    """Whether the failure came before the first byte of the request left.

    A TLS failure counts only when we refused the server's certificate: in TLS 1.3 the server's refusal of ours
    arrives after the request was sent.
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
    """Retry-After in its form of seconds, the only one that the API server sends."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return float(value)
