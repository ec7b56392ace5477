"""How Hypothesis runs here: the same examples every time, or new ones for as long as somebody has.

- `house`: what `make test` and CI run. Fixed: the same examples on every machine and every run, so that a failure is
  the change's.
- `explore`: what `make test-explore MINUTES=…` runs. Random: new examples every time, `FACTOR` times as many where a
  test takes its number from `examples`. What failed is kept under `FAILED` and tried first by the next exploration; a
  failure prints the line (`@reproduce_failure`) that brings it back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase

EXAMPLES: Final = 100
"""Of a test that says no number."""
FACTOR: Final = 5
FAILED: Final = Path(__file__).parents[1] / ".hypothesis" / "explored"
SLOW: Final = [hypothesis.HealthCheck.too_slow]
"""Nothing in the tests depends on how fast the machine is, so neither do Hypothesis' own verdicts."""


def register() -> None:
    """Make both known, and the fixed one the one that counts unless pytest is told otherwise
    (`--hypothesis-profile`).
    """
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": SLOW, "print_blob": True}
    hypothesis.settings.register_profile("house", derandomize=True, database=None, max_examples=EXAMPLES, **common)
    hypothesis.settings.register_profile(
        "explore",
        derandomize=False,
        database=DirectoryBasedExampleDatabase(FAILED),
        max_examples=EXAMPLES * FACTOR,
        **common,
    )
    hypothesis.settings.load_profile("house")


def examples(count: int, **more: Any) -> hypothesis.settings:
    """So many in the house, more where they are explored; for tests whose examples are dear. Health is never judged."""
    exploring = not hypothesis.settings().derandomize
    return hypothesis.settings(
        max_examples=count * (FACTOR if exploring else 1),
        suppress_health_check=list(hypothesis.HealthCheck),
        **more,
    )
