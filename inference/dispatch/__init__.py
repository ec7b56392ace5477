"""Requests to slots: which one is served next, where, and what becomes of its place.

`rounds.dispatch` is the only writer of requests and of `Slot.active`: the gateways of all web processes call it with
what has happened to their requests, and the task `dispatch_requests` in case a message was lost. `gateways` knows
which web processes live. Which slot serves is decided by `allocations.engine.slots.serving`. Invariants:
- A slot never has more than `parallel` requests, however many gateways there are: its count is raised by an UPDATE that
  finds room and the state `ready`. Rounds of one model are serial but for `immediate_places`, which gives nothing back.
- `Slot.active` is the number of its requests in the state `running`.
- Within a priority the API tokens take turns (`order`).
- A request whose gateway has ended fails, and its place is free again.
"""
