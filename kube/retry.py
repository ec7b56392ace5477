"""When a request is retried after a temporary error. Pure."""

from __future__ import annotations

import msgspec

from kube.errors import TemporaryKubeError, Throttled


class RetryRule(msgspec.Struct, frozen=True, kw_only=True):
    """After attempt n wait between half and all of base · 2ⁿ⁻¹ seconds, at most `cap_seconds`.

    A disruption budget and a Retry-After longer than the cap are left to the caller.
    """

    attempts: int = 4
    base_seconds: float = 0.1
    cap_seconds: float = 2.0

    def delay_seconds(self, *, attempt: int, error: TemporaryKubeError, chance: float) -> float | None:
        """Seconds to wait after failed attempt number `attempt` (from 1), or None to give up. `chance` is in [0, 1)."""
        if attempt >= self.attempts:
            return None
        backoff = min(self.base_seconds * 2.0 ** (attempt - 1), self.cap_seconds)
        if isinstance(error, Throttled) and error.by_disruption_budget:
            return None
        if isinstance(error, Throttled) and error.retry_after is not None:
            if error.retry_after > self.cap_seconds:
                return None
            return error.retry_after + self.base_seconds * chance
        return backoff * (0.5 + chance / 2)
