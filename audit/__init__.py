"""The audit trail: one append-only event per state change.

Called by every room above. Invariants:
- An event is written in the transaction that changes the state, and exists exactly when that was committed.
- Rows are never edited; they are deleted by age.
"""
