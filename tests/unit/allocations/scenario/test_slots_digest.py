"""What the page shows of slots: truncated and counted, whatever the scenario."""

from allocations.engine.gguf.estimate import Estimate, KvType, Parts
from allocations.scenario.slots import digest
from allocations.scenario.slots.digest import slots_digest
from allocations.scenario.slots.result import KeepWarmResult, RequestResult, SlotResult


def test_what_is_left_out_is_counted():
    """SLOT-7, VIEW-4 requests that wait come first; long lists and long sentences are cut."""
    many = tuple(range(digest.NAMES_SHOWN + 3))
    slots = [SlotResult(f"new-{n}", "m", "", "n1", many, many, tuple(map(str, many))) for n in range(300)]
    requests = [RequestResult(f"r{n}", None if n % 2 else "new-1", "x" * 700 if n % 2 else "") for n in range(800)]
    kept = [KeepWarmResult("m", 1, "no room")] * 60
    parts = Parts(blocks=1, output=2, kv=3, graph=0, projectors=0, minimum=0, first_block=0)
    one = Estimate(6, (6,), parts, "llama", "llama", 1, 1, KvType.F16, ("a note",))
    shown = slots_digest(slots, requests, kept, {"m": (one,) * 70})
    assert (len(shown.slots), shown.more_slots) == (200, 100)
    assert (len(shown.slots[0].gpus), shown.slots[0].more_gpus) == (32, 3)
    assert (len(shown.slots[0].evicts), shown.slots[0].more_evicts) == (32, 3)
    assert (len(shown.requests), shown.more_requests, shown.served, shown.waiting) == (500, 300, 400, 400)
    assert [one.slot for one in shown.requests[:400]] == [None] * 400
    assert len(shown.requests[0].reason) == digest.REASON_LONGEST
    assert (len(shown.keep_warm), shown.more_keep_warm) == (50, 10)
    assert (len(shown.estimates), shown.more_estimates) == (50, 20)
    assert shown.estimates[0].parts == (("blocks", 1), ("output", 2), ("kv", 3))
