"""The audit trail: one append-only event per state change; and announcements, which wake schedulers and the queues.

In come events of the transaction that changes a state; out go rows, in order, for pages and REST. Called by every room
above. Invariants:
- An event is written in the transaction that changes the state, and exists exactly when that was committed.
- Rows are never edited; they are deleted by age.
- An announcement is sent after the commit; one that is lost delays, and is made good by the next comparison.
"""
