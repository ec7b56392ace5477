"""The example of docs/inference.md: what the page says of it is what comes out, as result, text and digest."""

from __future__ import annotations

import re
from pathlib import Path

from allocations.scenario import Result, read_scenario, run_scenario, table_text
from allocations.scenario.digest import digest_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "inference.md").read_text()
GI = 1 << 30


def result() -> Result:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return run_scenario(read_scenario(text))


def test_the_example() -> None:
    """SLOT-5, SLOT-7, VIEW-4 code takes the place of s1, and draw waits."""
    found = result()
    assert found.slots
    (new,) = found.slots
    assert (new.id, new.model, new.runner, new.gpus, new.evicts) == ("new-1", "code", "n1", (0,), ("s1",))
    assert found.requests
    assert [(one.id, one.slot) for one in found.requests] == [("r1", "new-1"), ("r2", None)]
    assert found.requests[1].reason in PAGE
    assert [one.memory_used for one in found.fleet["n1"]] == [36 * GI, 0]


def test_its_text() -> None:
    """SLOT-7, VIEW-4 `manage.py simulate` prints slots and requests."""
    lines = [line.split() for line in table_text(result()).splitlines()]
    assert ["new-1", "code", "-", "n1", "0", "36", "GiB", "s1"] in lines
    assert ["r1", "new-1"] in lines
    assert "r2       -      no GPU has 90Gi free; best n1/1 with 35Gi" in table_text(result())


def test_its_digest() -> None:
    """SLOT-7, VIEW-4 the page has both, and counts what it leaves out."""
    slots = digest_of(result()).slots
    assert slots is not None
    assert [(one.id, one.evicts) for one in slots.slots] == [("new-1", ("s1",))]
    assert [one.id for one in slots.requests] == ["r2", "r1"]
    assert (slots.served, slots.waiting, slots.more_slots, slots.more_requests) == (1, 1, 0, 0)


def test_the_names_of_fields() -> None:
    """The tables name every field of a model, and every part of an estimate."""
    from allocations.engine.gguf.estimate import Parts
    from allocations.scenario.slots.parse import MODEL_KEYS

    assert all(f"`{name}`" in PAGE for name in (*MODEL_KEYS, *Parts.__struct_fields__))
