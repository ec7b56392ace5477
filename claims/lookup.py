"""Finding a GpuClaim for a pod, on the hot path: one query, and each spec parsed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
from django.db import connection

from claims.dialects.gpuclaim import ClaimInvalid, ClaimSpec, parse_claim_spec
from claims.dialects.request import Refusal


@dataclass(slots=True)
class ClaimFinder:
    """`find_claim` of one request; remembers the row's id of what it found."""

    claim_id: int | None = field(default=None)

    def __call__(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        """The claim's spec, a refusal when the stored one is malformed, None when there is none."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, spec FROM claims_gpuclaim WHERE namespace = %s AND name = %s", [namespace, name])
            row = cursor.fetchone()
        if row is None:
            return None
        self.claim_id = row[0]
        return _parsed(name, row[1])


@lru_cache(maxsize=4096)
def _parsed(name: str, spec: str) -> ClaimSpec | Refusal:
    try:
        return parse_claim_spec(msgspec.json.decode(spec))
    except ClaimInvalid as error:
        return Refusal(
            rule="claim-malformed", reason=f"GpuClaim {name} is malformed: {error.message}", field=error.field
        )
