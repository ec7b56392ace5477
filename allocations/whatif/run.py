"""One what-if run for a user, from the text of a scenario to the bytes of an answer.

Called by `POST /api/v1/simulations/` and by the what-if page, in the thread of their request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import structlog

from allocations.whatif.confined import Confinement, answer_to
from allocations.whatif.program import Task
from allocations.whatif.run_slots import RUN_SLOTS
from kube.waiting import about_to_wait

if TYPE_CHECKING:
    from access.clients import Client

Kind = Literal["json", "yaml", "either"]
Form = Literal["result", "digest"]

CONFINEMENT: Final = Confinement()

log = structlog.get_logger(__name__)


def what_if(text: bytes, *, user: int, kind: Kind, form: Form, client: Client) -> bytes:
    """The result as JSON, or the page's digest of it, which takes smaller scenarios only.

    Raises BadInput and TooLarge (400, 413) for a scenario that breaks a rule; TooManyUnderWay (429) while the user has
    a run and Unavailable (503) while all slots are taken; TookTooLong (504) and TooCostly (422) for a run that was
    ended; Unavailable where the client has left.
    """
    with RUN_SLOTS.taken(user):
        log.info("what_if.began", user=user, form=form, text_bytes=len(text))
        about_to_wait()  # gives the database connection back meanwhile
        task = Task(kind=kind, form=form)
        return answer_to(task, text, confinement=CONFINEMENT, client=client)
