"""Where models run: which slot serves a request, which slots are started, and which are evicted for them.

`plan.plan_slots`: a `SlotInput` in (models, runners, slots, requests, the fleet), a `SlotDecision` out. Called by
`allocations.scenario.slots`. The rules are in docs/inference.md. Invariants:
- Pure; the same input gives the same answer.
- Nothing is planned beyond the free memory of a GPU, and nothing is evicted that need not go.
- Each need has one slot or a reason, and a need without a slot changes nothing for those behind it.
"""
