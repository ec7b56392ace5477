"""The example of docs/queues.md: what the page says of it is what comes out, as result, text and digest."""

from __future__ import annotations

import re
from pathlib import Path

from allocations.scenario import Result, read_scenario, run_scenario, table_text
from allocations.scenario.digest import digest_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "queues.md").read_text()


def result() -> Result:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return run_scenario(read_scenario(text))


def test_the_example() -> None:
    """VIEW-4 training goes for chat."""
    (decision,) = result().decisions
    assert (decision.pod, decision.node, decision.waits_for) == ("web/chat", "n1", ("default/training",))
    (eviction,) = result().evictions or ()
    assert (eviction.pod, eviction.taker, eviction.by) == ("default/training", "web/chat", "reclaim")


def test_its_text() -> None:
    """VIEW-4 `manage.py simulate` prints evictions and queues."""
    lines = [line.split() for line in table_text(result()).splitlines()]
    assert ["default/training", "web/chat", "reclaim"] in lines
    assert ["serving", "all", "1", "2", "1", "1"] in lines


def test_its_digest() -> None:
    """VIEW-4 the page has both, and counts what it leaves out."""
    digest = digest_of(result())
    assert [one.pod for one in digest.evictions] == ["default/training"]
    assert [name for name, _ in digest.quotas] == ["research", "serving", "default"]
    assert (digest.more_evictions, digest.more_quotas) == (0, 0)
