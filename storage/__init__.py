"""Access to the database (clock, cursors, transactions, precedence) and to Redis (clients, locks, messages, the end of
asyncio tasks that wait for it); sending tasks.

In come statements, functions to run in a transaction, and messages; out go rows and locks. Called by every room above.
Invariants:
- It has no models.
- Only a deadlock, a serialization failure or SQLite's "database is locked" is retried, a bounded number of times.
- Every expiry is by the database's clock (`clock`).
"""
