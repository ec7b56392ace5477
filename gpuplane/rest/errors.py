"""REST framework's exception handler: every error under `/api/` becomes a problem document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from rest_framework.response import Response

from gpuplane.problems import FAULT, MEDIA_TYPE, problem_of

log = structlog.get_logger(__name__)


def handle(error: Exception, context: Mapping[str, Any]) -> Response:
    """The response to an error that a view raised; an unknown one is logged and is a 500."""
    problem = problem_of(error)
    if problem is None:
        view, request = context.get("view"), context.get("request")
        log.error(
            "rest.fault",
            view=type(view).__name__,
            path=getattr(request, "path", ""),
            method=getattr(request, "method", ""),
            exc_info=error,
        )
        problem = FAULT
    return Response(problem.document(), status=problem.status, headers=dict(problem.headers), content_type=MEDIA_TYPE)
