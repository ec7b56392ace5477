"""What is requested: dialects (pod → request), GpuClaims, admission.

Invariants:
- Every caller parses pods and claims by the same functions.
- With a cluster the API server owns a claim's spec, without one the database does (`store`).
- A claim that breaks a rule is refused, or mirrored as Invalid with the reason.
"""
