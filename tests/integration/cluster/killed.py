"""The process of test_kills: filters and binds one pod through its door, and kills itself after so many steps.

A pod with the label UNFILTERED is bound without a filter, as one is whose hold has ended: a thread plans for it again.

Run as `python -m tests.integration.cluster.killed STEPS POD-JSON NODE`, on the database and the API server of its
environment.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django

UNFILTERED = "tests/unfiltered"


def main(steps: int, pod: dict[str, Any], node: str) -> None:
    """Steps are counted from the beginning of filter (`tests.deaths`)."""
    from tests.deaths import killing
    from tests.door import Door

    killing(steps)
    with Door() as door:
        if UNFILTERED not in (pod["metadata"].get("labels") or {}):
            assert door.filtered(pod, [node]) == node
        assert door.bound(pod, node) == ""


if __name__ == "__main__":
    django.setup()
    main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
