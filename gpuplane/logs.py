"""Logs of every process: one event name and key–values a line, ours and the libraries' alike.

Called once by the settings, so every way into Django gets it. Kept true: no event carries a token or a
password; values go beside the event's name, never into it.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

_SECRET = (
    "authorization",
    "token",
    "api_token",
    "cluster_token",
    "webhooks_token",
    "metrics_token",
    "inventory_token",
    "password",
    "secret",
)


def _hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Last guard: a value under a name that promises a secret is not written."""
    for name in _SECRET:
        if name in event:
            event[name] = "…"
    return event


def _not_a_probe(record: logging.LogRecord) -> bool:
    """Drops Django's error line for each 503 of readiness: waiting is no error, and probes ask often."""
    return getattr(getattr(record, "request", None), "path", "") != "/readyz"


def _told_by_cause(record: logging.LogRecord) -> bool:
    """Takes the traceback off Django's line for an error that the table of errors knows, such as a host name that is not ours: its text says all."""
    if record.exc_info and record.name.startswith("django.") and (error := record.exc_info[1]) is not None:
        from gpuplane.problems import problem_of  # here: settings are read before anything of Django can be imported

        if problem_of(error) is not None:
            record.exc_info = record.exc_text = None
            if str(error) not in record.getMessage():
                record.msg, record.args = f"{record.getMessage()}: {error}", None
    return True


def configure(level: str) -> dict[str, Any]:
    """Set structlog up and return Django's LOGGING for the same lines. `level` is a GPUPLANE_LOG_LEVEL."""
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
            "by_cause": {"()": "django.utils.log.CallbackFilter", "callback": _told_by_cause},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "filters": ["by_cause"]}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {
            "django.server": {"handlers": [], "propagate": True},
            "django.request": {"level": "ERROR", "filters": ["no_probes"]},
            "uvicorn.error": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            # a line for each task sent, received and done would bury the rest
            "celery.beat": {"level": quiet},
            "celery.worker.strategy": {"level": quiet},
            "celery.app.trace": {"level": quiet},
        },
    }
