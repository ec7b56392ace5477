"""REST: every view and serializer under `/api/`, one module a resource, and what they share.

A view parses, calls one service or selector, and renders. Invariants:
- Lists are paged by cursor; writes accept `Idempotency-Key` and are done once.
- Bodies are decoded within a limit, and a malformed one is a 400, never a fault.
"""
