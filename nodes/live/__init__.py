"""The live path: agents' frames in, the latest sample of every node out.

`ingest` takes frames from agents, `samples` holds the latest of every node in memory, `flush` exchanges them with other
processes through Redis, `presence` records when agents were last heard. Called by listeners, consumers and pages.
Invariants: only `presence`, and agents' inventories, health and checkpoints, touch the database; memory is bounded;
with Redis down only other processes' samples are missing.
"""
