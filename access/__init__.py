"""Who may do what: accounts, roles, teams and tokens; and the errors of all rooms.

In come sessions, passwords and bearer tokens; out goes an `Actor`, which services and selectors take. Called by every
room above. Invariants:
- Roles and namespaces are checked in one place, `access.actors.Actor`.
- Tokens and passwords are stored hashed; a token that has ended is refused from that moment on.
- Accounts, teams and tokens are written by the services of this room alone, each write with its audit event.
- Passwords are checked in one place (`backends`), within the limits of `attempts`.
"""
