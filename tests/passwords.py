"""Passwords in tests: hashed in one round, in the format that the product's own hasher reads."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class OneRound(PBKDF2PasswordHasher):
    """Django's default without its cost (a third of a second of CPU for each account that a factory makes).

    A web process with the default settings checks such a hash, and writes it anew at its own cost when its owner signs
    in.
    """

    iterations = 1
