"""Logging of every process: one event name and key–values a line, the libraries' included.

Called once by the settings. Invariants: no event holds a token or a password; values are beside the event's name, never
in it.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

_SECRETS = frozenset(
    {
        "authorization",
        "token",
        "api_token",
        "cluster_token",
        "webhooks_token",
        "metrics_token",
        "inventory_token",
        "password",
        "secret",
    }
)


def _hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask values whose names stand for secrets, should one be logged by mistake."""
    for name in _SECRETS & event.keys():
        event[name] = "…"
    return event


def _not_a_probe(record: logging.LogRecord) -> bool:
    """Drop Django's error line for each 503 of readiness: waiting is no error, and probes are frequent."""
    return getattr(getattr(record, "request", None), "path", "") != "/readyz"


def _without_expected_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback from Django's line for an error of the table in `problems`, such as an unknown host name."""
    if record.exc_info and record.name.startswith("django.") and (error := record.exc_info[1]) is not None:
        from gpuplane.problems import problem_of  # here: settings are read before anything of Django can be imported

        if problem_of(error) is not None:
            record.exc_info = record.exc_text = None
            if str(error) not in record.getMessage():
                record.msg, record.args = f"{record.getMessage()}: {error}", None
    return True


def configure(level: str) -> dict[str, Any]:
    """Configure structlog, and return Django's LOGGING for the same format. `level`: GPUPLANE_LOG_LEVEL."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    quiet = "DEBUG" if level == "debug" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.dev.ConsoleRenderer(
                        colors=False,
                        pad_event_to=0,
                        pad_level=False,
                        # the rich ones show local variables, and with them tokens
                        exception_formatter=structlog.dev.plain_traceback,
                    ),
                ],
            }
        },
        "filters": {
            "no_probes": {"()": "django.utils.log.CallbackFilter", "callback": _not_a_probe},
            "by_cause": {"()": "django.utils.log.CallbackFilter", "callback": _without_expected_traceback},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "filters": ["by_cause"]}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {
            "django.server": {"handlers": [], "propagate": True},
            "django.request": {"level": "ERROR", "filters": ["no_probes"]},
            "uvicorn.error": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            # or there would be a line for each task sent, received and done
            "celery.beat": {"level": quiet},
            "celery.worker.strategy": {"level": quiet},
            "celery.app.trace": {"level": quiet},
        },
    }
