"""The REST plane: what every endpoint under `/api/` shares, and the addresses themselves.

The rooms' own `api.py` hold the views; REST framework finds the classes of this package by name in
the settings, so that no room imports upward.
"""
