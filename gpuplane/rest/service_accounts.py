"""REST by the token of a Kubernetes ServiceAccount: whose it is, says the API server.

Called by `authentication` and `idempotency`. Invariants: requests with such a token have slots of their own
(`gpuplane.listeners.body_limits`), and at most REVIEWS_MOST TokenReviews are waited for in a process, so that a slow
API server does not take the threads of pages and REST; an answer is used for as long as that of an API token, and
dropped as soon as the account changes (`access.tokens`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

import structlog
from django.conf import settings
from typing_extensions import override

from access import tokens
from access.choices import Role
from access.errors import TooManyUnderWay, Unavailable
from access.selectors import actor_of
from access.service_accounts import service_account_user
from access.tokens import Verified
from gpuplane.listeners.reviewed_tokens import ReviewedTokens, ReviewFailed, is_jwt
from gpuplane.listeners.unverified_claims import ends_at, why_never
from kube.shared import shared_cluster
from kube.token_reviews import Reviewed
from storage.clock import database_now

ACCOUNT: Final = "system:serviceaccount:"
REVIEWS_MOST: Final = 2
WAIT_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 5

log = structlog.get_logger(__name__)
_turns = threading.BoundedSemaphore(REVIEWS_MOST)
_failures_lock = threading.Lock()


@dataclass(slots=True)
class ServiceAccountTokens(ReviewedTokens[Verified]):
    """Of any ServiceAccount whose namespace is a team's."""

    fresh_seconds: float = 0.0  # `access.tokens` caches them

    @override
    def why_never(self, token: str) -> str:
        return why_never(token, account=ACCOUNT, audience=self.audience, now=self.wall(), any_account=True)

    @override
    def accepted(self, reviewed: Reviewed, digest: bytes) -> Verified | None:
        namespace, _, name = reviewed.username.removeprefix(ACCOUNT).partition(":")
        if not reviewed.username.startswith(ACCOUNT) or not name:
            log.warning("rest.token_refused", user=reviewed.username, why="no ServiceAccount")
            return None
        role = Role(settings.GPUPLANE_SERVICE_ACCOUNT_ROLE)
        user = service_account_user(namespace=namespace, name=name, role=role, now=database_now())
        if user is None:
            log.warning("rest.token_refused", user=reviewed.username, why="no team's namespace, or shut")
            return None
        return Verified(user=user, actor=replace(actor_of(user), token=digest.hex()))


_reviews = ServiceAccountTokens(
    cluster=lambda: shared_cluster(settings.GPUPLANE_KUBECONFIG), audience=settings.GPUPLANE_AGENT_AUDIENCE
)


def is_service_account_token(token: str) -> bool:
    """Whether the token has the shape of one, and such tokens are accepted here."""
    return is_jwt(token) and settings.GPUPLANE_SERVICE_ACCOUNT_ROLE != "none"


def verify_bearer(token: str, *, address: str) -> Verified | None:
    """The account of a bearer token of either kind; None for one that opens nothing.

    Raises TooManyUnderWay, Unavailable.
    """
    if is_service_account_token(token):
        return verify_service_account(token, address=address)
    return tokens.verify_user(token)


def verify_service_account(token: str, *, address: str) -> Verified | None:
    """The machine account of the token; None for a token that opens nothing.

    `address`: of the caller, whose failures are limited. Raises TooManyUnderWay, Unavailable.
    """
    return tokens.verify_elsewhere(token, lambda: _reviewed(token, address))


def _reviewed(token: str, address: str) -> Verified | None:
    if _reviews.refused(token):
        return None
    seen = _reviews.seen(token)
    if not seen and not _counted(address):
        raise TooManyUnderWay(
            "too many requests with unknown tokens; retry later", rule="tokens", retry_after_seconds=RETRY_SECONDS
        )
    if not _turns.acquire(timeout=WAIT_SECONDS):
        _give_back(address, seen=seen)
        raise Unavailable("too many tokens are being checked; retry later")
    try:
        found = _reviews.verify(token)
    except ReviewFailed as error:
        _give_back(address, seen=seen)
        raise Unavailable("the API server did not review the token; retry later") from error
    finally:
        _turns.release()
    if found is None:
        return None
    _give_back(address, seen=seen)
    return replace(found, fresh_seconds=min(found.fresh_seconds, max(0.0, ends_at(token) - _reviews.wall())))


def _counted(address: str) -> bool:
    with _failures_lock:
        return _reviews.failures.take(address)


def _give_back(address: str, *, seen: bool) -> None:
    if not seen:
        with _failures_lock:
            _reviews.failures.give_back(address)
