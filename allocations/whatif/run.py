"""One what-if run for a user, from the text of a scenario to the bytes of an answer.

Called by `POST /api/v1/simulations/` and by the what-if page, in the thread of their request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import structlog

from allocations.whatif.confined import Confinement, answer_to
from allocations.whatif.program import Task
from allocations.whatif.turns import TURNS
from kube.waiting import about_to_wait

if TYPE_CHECKING:
    from access.clients import Client

Kind = Literal["json", "yaml", "either"]
Form = Literal["result", "digest"]

CONFINEMENT: Final = Confinement()

log = structlog.get_logger(__name__)


def what_if(text: bytes, *, user: int, kind: Kind, form: Form, client: Client) -> bytes:
    """The result as JSON (`result`), or what the page shows of it (`digest`), for smaller scenarios only.

    Raises BadInput and TooLarge (400, 413) for a scenario that breaks a rule; TooMany (429) while the user has a run under way and Unavailable
    (503) while four others do; TookTooLong (504) and TooCostly (422) for one that was ended; Unavailable where the client has left.
    """
    with TURNS.taken(user):
        log.info("what_if.began", user=user, form=form, text_bytes=len(text))
        about_to_wait()  # for a process: meanwhile the connection to the database is somebody else's
        task = Task(kind=kind, form=form, small=form == "digest")
        return answer_to(task, text, confinement=CONFINEMENT, client=client)
