"""What the ledger's upkeep counts, read back from the registry after real turns of it."""

from __future__ import annotations

from allocations.counters import CollectionCause
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import World
from tests.measured import growth

COLLECTED, TURNS = "gpuplane_collected_total", "gpuplane_collections_total"
COMPARED, DIFFER, REPAIRED = "gpuplane_comparisons_total", "gpuplane_differences_total", "gpuplane_repaired_total"


def test_collection_by_cause(world: World) -> None:
    """VIEW-5 each row that collection ends counts once, under why; a turn that finds nothing is a turn."""
    world.node("n1")
    world.claim("one", count=1)
    for name in ("waits", "stuck"):
        world.pod(name, claim="one")
        assert world.filter(name) == "n1"
    with growth(COLLECTED, TURNS) as grown:
        world.collect_garbage(later=3600)
        world.collect_garbage(later=3600)
    assert grown == {(COLLECTED, CollectionCause.HOLD_EXPIRED): 2, (TURNS,): 2}


def test_comparison_and_what_it_found(world: World) -> None:
    """VIEW-5 what comparisons end, repair and cannot repair; one without the cluster is told apart."""
    world.node("n1")
    world.claim("one", count=1)
    world.place("gone", claim="one")
    world.remove("gone")
    with growth(COLLECTED, COMPARED, DIFFER) as grown:
        world.reconcile()
    assert grown == {(COLLECTED, CollectionCause.POD_GONE): 1, (COMPARED, "done"): 1}
    world.server.faults.append(Fault("GET", ".*", status=503, times=100))
    with growth(COLLECTED, COMPARED, DIFFER, REPAIRED) as grown:
        assert world.reconcile().problem
    assert grown == {(COMPARED, "interrupted"): 1}
