"""Django's sessions in the database, by keys that Django makes and no others.

Set as `SESSION_ENGINE`, so that pages, REST and WebSockets read sessions alike. Invariants: no query gets a key with a
NUL or a surrogate, which PostgreSQL refuses; who brings such a key is not signed in.
"""

from __future__ import annotations

import re
from typing import Any, Final

from django.contrib.sessions.backends import db

KEY: Final = re.compile(r"[a-z0-9]{8,64}")


class SessionStore(db.SessionStore):
    """One session. Its class keeps Django's name, which is part of how its data are signed."""

    def _validate_session_key(self, key: Any) -> bool:
        return isinstance(key, str) and KEY.fullmatch(key) is not None
