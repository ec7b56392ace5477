"""Admission: pure verdicts on decoded reviews, and the views of the webhooks that call them.

Invariants:
- A pod that requests no devices is never changed and never refused, however malformed it is.
- A verdict has no side effect; a patched pod gets no second patch.
- Result annotations are written only by gpuplane and the dialects' own schedulers (`trust`).
"""
