"""Errors that stop a program before it starts. Not in `settings`, which cannot be imported when one is bad."""

from __future__ import annotations


class BadSetting(Exception):
    """One or more variables do not parse; the text names each, its rule and its value."""
