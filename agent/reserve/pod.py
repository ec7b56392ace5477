"""The program's own pod at the API server: one GET, and one PATCH where the annotation is not right yet.

Called by the program, which repeats it after `TryAgain`. The pod is read before it is written, so that a container that
was restarted writes nothing, and nobody's watch hears of it, while its GPUs are the same; and because the pod tells how
many GPUs it has. The patch names the pod's UID: reservation pods have deterministic names, and the pod of that name may
be another by now.

    ReserveError
    ├── TryAgain    connection, 401 (the kubelet rotates the token), 408, 409, 429, 5xx
    ├── PodGone     the pod was deleted, or is another one
    └── Refused     anything else: permissions, TLS, settings

Invariants: token and CA are read anew for each request; every request has a deadline.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.reserve.http1 import Answer, exchange

ANNOTATION: Final = "run.ai/reserve_for_gpu_index"
GPU_RESOURCE: Final = "nvidia.com/gpu"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
SECONDS: Final = 10.0
"""For a whole request."""
RETRY_AFTER_MOST: Final = 30.0

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_TOKEN: Final = re.compile(r"[!-~]+")


class ReserveError(Exception):
    """Anything that keeps the annotation from being written."""


class TryAgain(ReserveError):
    """Temporary. `seconds`: the least pause that the server asks for."""

    def __init__(self, message: str, seconds: float = 0.0, *, unauthorized: bool = False) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.unauthorized = unauthorized


class PodGone(ReserveError):
    """The pod is no more, or another of its name is there."""


class Refused(ReserveError):
    """Permanent."""


class Found(NamedTuple):
    """The pod as it is stored. `gpus`: how many it was given, None where it does not say."""

    uid: str
    gpus: int | None
    annotation: str


class Place(NamedTuple):
    """Where the pod is: namespace, name and UID (empty: unknown), API server, folder of the ServiceAccount."""

    namespace: str
    name: str
    uid: str
    host: str
    port: int
    folder: Path


def place_of(environment: Mapping[str, str]) -> Place:
    """The place that the environment names. Raises Refused, which names every variable that is missing or wrong."""
    name, namespace = environment.get("POD_NAME", ""), environment.get("POD_NAMESPACE", "")
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    wrong = [
        variable
        for variable, right in (
            ("POD_NAME", _SUBDOMAIN.fullmatch(name)),
            ("POD_NAMESPACE", _LABEL.fullmatch(namespace)),
            ("KUBERNETES_SERVICE_HOST", _TOKEN.fullmatch(host)),
            ("KUBERNETES_SERVICE_PORT", port.isdecimal() and 0 < int(port[:6]) < 65536),
        )
        if not right
    ]
    if wrong:
        raise Refused(f"missing or invalid in the environment: {', '.join(wrong)}")
    folder = Path(environment.get("GPUPLANE_SERVICE_ACCOUNT_DIR") or ACCOUNT)
    return Place(namespace, name, environment.get("POD_UID", ""), host, int(port), folder)


class OwnPod:
    """The pod at the API server."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = f"/api/v1/namespaces/{place.namespace}/pods/{place.name}"

    def read(self) -> Found:
        """The pod. Raises ReserveError; PodGone where it is another one."""
        pod = self._asked("GET")
        try:
            meta, containers = pod["metadata"], pod["spec"]["containers"]
            limits = [int((one.get("resources") or {}).get("limits", {}).get(GPU_RESOURCE, 0)) for one in containers]
            uid, annotation = str(meta["uid"]), str((meta.get("annotations") or {}).get(ANNOTATION, ""))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused("the API server's answer is no pod") from error
        if self._place.uid and uid != self._place.uid:
            raise PodGone("another pod of this name is there")
        return Found(uid, sum(limits) or None, annotation)

    def write(self, found: Found, uuids: Sequence[str]) -> None:
        """Set the annotation on exactly this pod. Raises ReserveError; after TryAgain read it again."""
        meta = {"uid": found.uid, "annotations": {ANNOTATION: ",".join(uuids)}}
        self._asked("PATCH", json.dumps({"metadata": meta}).encode())

    def _asked(self, method: str, body: bytes = b"") -> Any:
        """The decoded answer to a request about the pod."""
        token, context = self._account()
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json",
            "User-Agent": "gpuplane-reserve",
            "Content-Type": "application/merge-patch+json",
        }
        try:
            answer = exchange(
                host=self._place.host,
                port=self._place.port,
                context=context,
                method=method,
                path=self._path,
                headers=headers,
                body=body,
                seconds=SECONDS,
            )
        except ssl.SSLCertVerificationError as error:
            raise Refused(f"the API server's certificate is not valid: {error.verify_message}") from error
        except OSError as error:
            raise TryAgain(f"{method}: {type(error).__name__}: {error}") from error
        decoded = _decoded(answer.body)
        if 200 <= answer.status < 300 and decoded is not None:
            return decoded
        raise _error(method, answer, decoded)

    def _account(self) -> tuple[str, ssl.SSLContext]:
        """The token, and a context with the CA, of now. Raises Refused where they are not usable."""
        folder = self._place.folder
        try:
            token = (folder / "token").read_text(encoding="ascii").strip()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cafile=folder / "ca.crt")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, UnicodeDecodeError a ValueError
            raise Refused(f"the ServiceAccount in {folder} is not usable: {error}") from error
        if not _TOKEN.fullmatch(token):
            raise Refused(f"{folder / 'token'} holds no token")
        return token, context


def _decoded(data: bytes) -> Any:
    """The JSON object, None for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _error(method: str, answer: Answer, decoded: Any) -> ReserveError:
    """What an answer means that is not the pod."""
    told, status = decoded or {}, answer.status
    # line ends would make more than one line of it
    message = " ".join(str(told.get("message") or "no explanation").split())[:300]
    text = f"{method}: the API server answers {status}: {message}"
    if status == 404 and told.get("reason") == "NotFound":
        return PodGone(text)
    if status in {401, 408, 409, 429} or status >= 500:
        pause = answer.headers.get("retry-after", "")
        seconds = min(float(pause), RETRY_AFTER_MOST) if pause.isdecimal() else 0.0
        return TryAgain(text, seconds, unauthorized=status == 401)
    return Refused(text)
