"""The Procfile runner behind `make run`: everything gpuplane needs, on one machine, in one terminal.

Nothing here imports Django: the runner prepares the environment that Django's settings are read from.
"""
