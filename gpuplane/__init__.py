"""Composition root: settings, URLs, listeners, pages, REST, Celery, the table of errors.

Imports every other package, and none imports it. Invariants:
- A view, task or consumer parses, calls one service or selector, and renders.
- Errors become HTTP in one table (`problems`).
- Settings are read once, from `GPUPLANE_*` variables, and a bad one stops the start with a message.
"""
