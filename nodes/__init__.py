"""Nodes, devices, topology, health, live streams, history.

In come inventories (REST), agents' frames and the cluster's Node objects; out go device rows with revisions, browsers'
streams, and what nodes advertise. Called by `allocations` and `gpuplane`. Invariants:
- Every change that placement could see stamps the device with a new revision, so no reader misses it.
- The ledger writes the use of a device; a held device is neither deleted nor made smaller.
- Agents' samples do not touch the database on their way to browsers.
- A silent agent stops new placement only; holders keep their devices.
"""
