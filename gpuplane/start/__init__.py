"""What the web process runs beside requests; each module offers `async start()` and `async stop()`.

Called by `gpuplane.listeners.lifespan`, but for `background` and `interpreter`. Invariants:
- A database, Redis or API server that is away at the start delays readiness, and not the start itself.
- A failure of one round ends neither the thread or task nor the process.
- No request waits for any of it.
"""
