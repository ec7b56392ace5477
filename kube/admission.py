"""AdmissionReview v1: decoding the request, building and encoding the answer.

The objects inside stay raw until a verdict decodes the fields it needs. Invariants: an answer carries the uid of its
request; a patch is a JSONPatch in base64. Format:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#request
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from kube.bounded import OBJECT_VALUES_MOST, REVIEW_VALUES_MOST, TooManyValues, check_values
from kube.names import InvalidName, check_uid

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
UNDECODABLE: Final = (msgspec.DecodeError, RecursionError, ValueError)
"""What decoding untrusted JSON can raise."""

_NULL: Final = msgspec.Raw(b"null")

Decoded = TypeVar("Decoded")


class ReviewInvalid(ValueError):
    """The body is not an AdmissionReview v1; the text says why."""


class ObjectInvalid(ValueError):
    """An object inside a review cannot be decoded; the text says where."""


class UserInfo(msgspec.Struct, omit_defaults=True):
    """The requester."""

    username: str = ""


class GroupVersionKind(msgspec.Struct, omit_defaults=True):
    """The kind of the object."""

    kind: str = ""


class AdmissionRequest(msgspec.Struct, rename="camel", omit_defaults=True):
    """The request of a review. `object` is null on DELETE, `old_object` on CREATE."""

    uid: str
    kind: GroupVersionKind = msgspec.field(default_factory=GroupVersionKind)
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = msgspec.field(default_factory=UserInfo)
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


class Status(msgspec.Struct, omit_defaults=True):
    """A refusal: HTTP code, message, and reason as of the API (`Invalid`, `Forbidden`)."""

    code: int
    message: str
    reason: str = ""


class AdmissionResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    """The response of a review."""

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
    """Decode an AdmissionReview v1. Raises `ReviewInvalid`."""
    try:
        check_values(body, most=REVIEW_VALUES_MOST)
        review = _REVIEW.decode(body)
        check_uid(review.request.uid, what="request.uid")
    except InvalidName as error:
        raise ReviewInvalid(str(error)) from error
    except TooManyValues as error:
        raise ReviewInvalid(f"the review is too large: {error}") from error
    except UNDECODABLE as error:
        raise ReviewInvalid(f"the body is not an AdmissionReview: {error}") from error
    if review.api_version != API_VERSION or review.kind != KIND:
        raise ReviewInvalid(f"the body must be {KIND} of {API_VERSION}")
    return review.request


def decode_object(raw: msgspec.Raw, kind: type[Decoded]) -> Decoded:
    """Decode an object of a request. Raises `ObjectInvalid`."""
    try:
        check_values(raw, most=OBJECT_VALUES_MOST)
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE as error:
        raise ObjectInvalid(str(error)) from error


def encode_review(response: AdmissionResponse) -> bytes:
    """Encode an AdmissionReview v1."""
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def allowed(
    request: AdmissionRequest, *, patch: Sequence[dict[str, Any]] = (), warnings: Sequence[str] = ()
) -> AdmissionResponse:
    """Allow, with JSONPatch operations and warnings."""
    response = AdmissionResponse(uid=request.uid, allowed=True, warnings=list(warnings) or None)
    if patch:
        response.patch_type = "JSONPatch"
        response.patch = base64.b64encode(msgspec.json.encode(list(patch))).decode("ascii")
    return response


def invalid(request: AdmissionRequest, message: str) -> AdmissionResponse:
    """Refuse an object that breaks a rule (422 Invalid)."""
    return AdmissionResponse(uid=request.uid, allowed=False, status=Status(422, message, "Invalid"))


def forbidden(request: AdmissionRequest, message: str) -> AdmissionResponse:
    """Refuse what this requester may not do (403 Forbidden)."""
    return AdmissionResponse(uid=request.uid, allowed=False, status=Status(403, message, "Forbidden"))
