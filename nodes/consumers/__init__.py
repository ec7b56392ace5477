"""WebSocket streams for browsers: the fleet, one node, one device (docs/fleet-stream.md, docs/node-stream.md).

Called by `nodes.routing`. Invariants: only users who are signed in are served, and no longer than they are; each frame
has a sequence number, and a browser that lost one asks for a full frame.
"""
