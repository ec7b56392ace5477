"""AdmissionReview v1 as the API server sends it and wants it answered.

Called by the webhook views (decode, encode) and by `claims.admission` (verdicts between the two). The objects
inside stay raw until a verdict decodes the few fields it needs. Kept true: an answer carries the uid of
its request; a patch is a JSONPatch in base64. Source of the format:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#request
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from kube.bounded import OBJECT_VALUES_MOST, REVIEW_VALUES_MOST, TooMany, check_values
from kube.names import InvalidName, check_uid

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
UNDECODABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)
"""Everything that decoding hostile JSON can raise."""

_NULL: Final = msgspec.Raw(b"null")

Decoded = TypeVar("Decoded")


class ReviewInvalid(ValueError):
    """The body is no AdmissionReview v1; the text says why. There is no uid to answer to."""


class ObjectInvalid(ValueError):
    """The object inside a review does not have the shape of its kind; the text says where."""


class UserInfo(msgspec.Struct, omit_defaults=True):
    """Who asks."""

    username: str = ""
    groups: list[str] | None = None


class GroupVersionKind(msgspec.Struct, omit_defaults=True):
    """The kind of the object."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(msgspec.Struct, omit_defaults=True):
    """The resource that is written."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, rename="camel", omit_defaults=True):
    """One question of the API server. `object` is null on DELETE, `old_object` on CREATE."""

    uid: str
    kind: GroupVersionKind = msgspec.field(default_factory=GroupVersionKind)
    resource: GroupVersionResource = msgspec.field(default_factory=GroupVersionResource)
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool | None = None


class Status(msgspec.Struct, omit_defaults=True):
    """Why something is refused: an HTTP code, a sentence, and a reason of the API (`Invalid`, `Forbidden`)."""

    code: int
    message: str
    reason: str = ""


class AdmissionResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    """The answer to one request."""

    uid: str
    allowed: bool
    status: Status | None = None
    patch_type: str | None = None
    patch: str | None = None
    warnings: list[str] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


_REVIEW: Final = msgspec.json.Decoder(_Review)


def decode_review(body: bytes) -> AdmissionRequest:
    """The request of an AdmissionReview v1 body. Raises `ReviewInvalid`."""
    try:
        check_values(body, most=REVIEW_VALUES_MOST)
        review = _REVIEW.decode(body)
        check_uid(review.request.uid, what="request.uid")
    except InvalidName as error:
        raise ReviewInvalid(str(error)) from error
    except TooMany as error:
        raise ReviewInvalid(f"the review is too large: {error}") from error
    except UNDECODABLE as error:
        raise ReviewInvalid(f"the body is not an AdmissionReview: {error}") from error
    if review.api_version != API_VERSION or review.kind != KIND:
        raise ReviewInvalid(f"the body must be {KIND} of {API_VERSION}")
    return review.request


def decode_object(raw: msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """A raw object of a request as a struct. Raises `ObjectInvalid`."""
    try:
        check_values(raw, most=OBJECT_VALUES_MOST)
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE as error:
        raise ObjectInvalid(str(error)) from error


def encode_review(response: AdmissionResponse) -> bytes:
    """The AdmissionReview v1 body that carries an answer."""
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def allowed(
    request: AdmissionRequest, *, patch: Sequence[dict[str, Any]] = (), warnings: Sequence[str] = ()
) -> AdmissionResponse:
    """Yes, with JSONPatch operations and warnings where there are some."""
    response = AdmissionResponse(uid=request.uid, allowed=True, warnings=list(warnings) or None)
    if patch:
        response.patch_type = "JSONPatch"
        response.patch = base64.b64encode(msgspec.json.encode(list(patch))).decode("ascii")
    return response


def invalid(request: AdmissionRequest, message: str) -> AdmissionResponse:
    """No: the object breaks a rule (422 Invalid)."""
    return AdmissionResponse(uid=request.uid, allowed=False, status=Status(422, message, "Invalid"))


def forbidden(request: AdmissionRequest, message: str) -> AdmissionResponse:
    """No: this requester may not do it (403 Forbidden)."""
    return AdmissionResponse(uid=request.uid, allowed=False, status=Status(403, message, "Forbidden"))
