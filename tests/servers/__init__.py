"""Servers that the tests (and `make bench`) start for themselves and stop whatever happens."""
