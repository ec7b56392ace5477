"""Every HTML page, one module a subject; their addresses, menu, forms and error pages. `page` has what they share.

Invariants:
- A page shows what the actor may see: a view parses, calls one selector or service, which judges that, and renders.
- Every write is a POST with Django's CSRF token, and calls one service.
"""
