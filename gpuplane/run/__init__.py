"""The Procfile supervisor behind `make run`: everything gpuplane needs, on one machine, in one terminal.

Called by `python -m gpuplane.run`. Invariants:
- Nothing here imports Django: the supervisor prepares the environment that Django's settings are read from.
- Nothing outlives the supervisor, and a stop is bounded in time.
- What is printed when all is up works, and holds no secret.
"""
