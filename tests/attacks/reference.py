"""What filter's times are compared with: a process that does a fixed piece of work for each line of its input.

`python -m tests.attacks.reference`, asked by the honest clients as often as filter is. Nobody attacks it and it shares
nothing with the product but the machine: what it takes longer beside an attack, the machine was slower, and not the
product.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TIMES = 40
"""Some 4 ms on a core of 2026, which is what a filter of 64 nodes costs the web process."""


def work(document: dict[str, Any]) -> int:
    """Bytes written: the same for the same document."""
    return sum(len(json.dumps(json.loads(json.dumps(document)))) for _ in range(TIMES))


def main() -> None:
    """Until the input ends."""
    document = {"nodes": [{"name": f"node-{number}", "free": number % 8} for number in range(64)]}
    for _ in sys.stdin:
        sys.stdout.write(f"{work(document)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
