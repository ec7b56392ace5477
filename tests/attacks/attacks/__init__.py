"""The attacks, one module a subject."""
