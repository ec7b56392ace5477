"""When tokens were last used, written in the background so that no request waits for it.

Called once a minute by each web process (`gpuplane.start.access`). Kept true: one query and one statement for any
number of tokens up to `tokens.AT_ONCE`; what is shown is at most about a minute old; a process that is killed loses the
uses of its last minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from knox.models import AuthToken

from access.models import TokenUse
from access.tokens import AT_ONCE, used
from access.transactions import atomic_retry
from audit.clock import database_now

WRITE_SECONDS: Final = 60.0


def uses_flush() -> int:
    """Write down what this process knows of uses; of how many tokens."""
    ago = used()
    return uses_write(ago=ago, now=database_now()) if ago else 0


@atomic_retry
def uses_write(*, ago: Mapping[str, float], now: datetime) -> int:
    """Note for each token (by digest) that it was used so many seconds ago. Tokens that are gone are passed over."""
    digests = list(ago)
    for start in range(0, len(digests), AT_ONCE):
        there = AuthToken.objects.filter(pk__in=digests[start : start + AT_ONCE]).values_list("pk", flat=True)
        rows = [TokenUse(token_id=pk, last_used_at=now - timedelta(seconds=ago[pk])) for pk in there]
        TokenUse.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["token"], update_fields=["last_used_at"]
        )
    return len(digests)
