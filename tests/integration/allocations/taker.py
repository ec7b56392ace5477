"""One of the processes of test_recount: takes and returns devices as fast as it can, through the extender, without a
cluster.

Run as `python -m tests.integration.allocations.taker NUMBER ATTEMPTS`, on the database of its
environment; prints a JSON line with what it met.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime

import django


def take(number: int, attempts: int) -> Counter[str]:
    """Filter, mostly bind, mostly release; some holds are left behind as a crash would."""
    from access.actors import SYSTEM
    from allocations import services
    from allocations.models import Allocation
    from nodes.models import Node
    from tests.extender import bound, filtered, pod_manifest

    chance = random.Random(number)
    nodes = list(Node.objects.values_list("name", flat=True))
    met: Counter[str] = Counter()
    mine: list[str] = []
    for attempt in range(attempts):
        claim = chance.choice(("one", "half", "half", "two"))
        pod = pod_manifest(f"pod-{number}-{attempt}", claim=claim)
        node = filtered(pod, nodes)
        met["refused" if node is None else "held"] += 1
        if node is not None and chance.random() < 0.997:
            error = bound(pod, node)
            met["bind failed" if error else "bound"] += 1
            if not error:
                mine.append(pod["metadata"]["uid"])
        if mine:
            allocation = Allocation.objects.get(pod_uid=mine.pop(chance.randrange(len(mine))), state="bound")
            services.allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=datetime.now(UTC))
            met["released"] += 1
    return met


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(take(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
