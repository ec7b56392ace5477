"""The live path: agents' frames in, the latest sample of every node out (DESIGN §2, Live path).

`ingest` takes frames from agents, `samples` holds the latest of every node in memory, `flush` moves
them through Redis between processes, `presence` writes down when a node's agent was last heard and
notices silence. Only `presence`, and the inventory and health that agents report, touch the database.
"""
