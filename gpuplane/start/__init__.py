"""What the web process keeps going besides answering; each module offers `async start()` and `async stop()`."""
