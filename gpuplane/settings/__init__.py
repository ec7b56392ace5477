"""Django's settings, composed from the `GPUPLANE_*` environment variables (docs/settings.md).

Other modules read `django.conf.settings`, which also has each variable as `GPUPLANE_<NAME>`, typed. Invariants:
- No setting is read from the environment after this module.
- A value that is missing or does not parse, and a name that is not listed (`variables`), stop the start with one
  message.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from access.oidc.providers import Provider
from gpuplane import data_folder, logs
from gpuplane.listeners import body_limits
from gpuplane.settings import databases, variables

# Before numpy is first imported: the engine's matrices are small, and OpenBLAS's threads only compete with other
# processes for the cores (a cold plan took three times as long).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

BASE_DIR = Path(__file__).resolve().parent.parent.parent
_values = variables.read(os.environ)

GPUPLANE_DATA_DIR: Path = (BASE_DIR / _values["DATA_DIR"]).resolve()
GPUPLANE_HOST: str = _values["HOST"]
GPUPLANE_PORT: int = _values["PORT"]
GPUPLANE_EXTENDER_LISTEN: str = _values["EXTENDER_LISTEN"]
GPUPLANE_WEBHOOK_LISTEN: str = _values["WEBHOOK_LISTEN"]
GPUPLANE_TLS_CERT: Path | None = _values["TLS_CERT"]
GPUPLANE_TLS_KEY: Path | None = _values["TLS_KEY"]
GPUPLANE_CLIENT_CA: Path | None = _values["CLIENT_CA"]
GPUPLANE_WEBHOOK_CLIENT_CA: Path | None = _values["WEBHOOK_CLIENT_CA"]
GPUPLANE_MAIN_TLS: bool = _values["MAIN_TLS"]
GPUPLANE_AGENTS_ONLY: bool = _values["AGENTS_ONLY"]
GPUPLANE_KUBECONFIG: str = _values["KUBECONFIG"]
SIMULATED_KUBECONFIG = GPUPLANE_DATA_DIR / "simulator" / "kubeconfig"
"""Of the simulated cluster, which `make run` sets for its processes."""
GPUPLANE_NAMESPACE: str = _values["NAMESPACE"]
GPUPLANE_SERVICE_ACCOUNT: tuple[str, ...] = _values["SERVICE_ACCOUNT"]
GPUPLANE_AGENT_SERVICE_ACCOUNT: str = _values["AGENT_SERVICE_ACCOUNT"]
GPUPLANE_AGENT_AUDIENCE: str = _values["AGENT_AUDIENCE"]
GPUPLANE_SCHEDULER_NAME: str = _values["SCHEDULER_NAME"]
GPUPLANE_GUARD: str = _values["GUARD"]
GPUPLANE_TRUSTED_USERS: tuple[str, ...] = _values["TRUSTED_USERS"]
GPUPLANE_EXTENDER_MODE: str = _values["EXTENDER_MODE"]
GPUPLANE_VISIBLE_DEVICES: str = _values["VISIBLE_DEVICES"]
GPUPLANE_SHARE: str = _values["SHARE"]
GPUPLANE_ISOLATION: str = _values["ISOLATION"]
GPUPLANE_MPS_PIPE_DIRECTORY: str = _values["MPS_PIPE_DIRECTORY"]
GPUPLANE_MPS_SHM_DIRECTORY: str = _values["MPS_SHM_DIRECTORY"]
GPUPLANE_HAMI_CORE_DIRECTORY: str = _values["HAMI_CORE_DIRECTORY"]
GPUPLANE_NATIVE_MODE: str = _values["NATIVE_MODE"]
GPUPLANE_GPU_SPLIT: int = _values["GPU_SPLIT"]
GPUPLANE_COUNT_NATIVE: bool = _values["COUNT_NATIVE"] or GPUPLANE_GPU_SPLIT > 1
GPUPLANE_RESERVATION_NAMESPACE: str = _values["RESERVATION_NAMESPACE"]
GPUPLANE_RESERVATION_IMAGE: str = _values["RESERVATION_IMAGE"]
GPUPLANE_RESERVATION_PULL_SECRETS: tuple[str, ...] = _values["RESERVATION_PULL_SECRETS"]
GPUPLANE_RESERVATION_RUNTIME_CLASS: str = _values["RESERVATION_RUNTIME_CLASS"]
GPUPLANE_RESERVATION_PRIORITY_CLASS: str = _values["RESERVATION_PRIORITY_CLASS"]
GPUPLANE_RESERVATION_TOLERATIONS: tuple[dict[str, Any], ...] = _values["RESERVATION_TOLERATIONS"]
GPUPLANE_RESERVATION_SECONDS: int = _values["RESERVATION_SECONDS"]
GPUPLANE_SPARE_GROUPS: int = _values["SPARE_GROUPS"]
GPUPLANE_HOLD_SECONDS: int = _values["HOLD_SECONDS"]
GPUPLANE_LONG_HOLD_SECONDS: int = _values["LONG_HOLD_SECONDS"]
GPUPLANE_COLLECT_SECONDS: int = _values["COLLECT_SECONDS"]
GPUPLANE_RELOAD_SECONDS: int = _values["RELOAD_SECONDS"]
GPUPLANE_QUEUE_SECONDS: int = _values["QUEUE_SECONDS"]
GPUPLANE_QUEUE_LENGTH: int = _values["QUEUE_LENGTH"]
GPUPLANE_UPSTREAM_SECONDS: int = _values["UPSTREAM_SECONDS"]
GPUPLANE_MINUTES_KEPT_HOURS: int = _values["MINUTES_KEPT_HOURS"]
GPUPLANE_HOURS_KEPT_DAYS: int = _values["HOURS_KEPT_DAYS"]
GPUPLANE_IDLE_MINUTES: int = _values["IDLE_MINUTES"]
GPUPLANE_SCALE_AFTER_SECONDS: int = _values["SCALE_AFTER_SECONDS"]
GPUPLANE_TRIGGER_SECONDS: int = _values["TRIGGER_SECONDS"]
GPUPLANE_REGISTRATION_SECONDS: int = _values["REGISTRATION_SECONDS"]
GPUPLANE_INVENTORY_SECONDS: int = _values["INVENTORY_SECONDS"]
GPUPLANE_SLOT_START_SECONDS: int = _values["SLOT_START_SECONDS"]
GPUPLANE_SLOT_DRAIN_SECONDS: int = _values["SLOT_DRAIN_SECONDS"]
GPUPLANE_DO_NOT_DISRUPT: bool = _values["DO_NOT_DISRUPT"]
GPUPLANE_PAUSE_IMAGE: str = _values["PAUSE_IMAGE"]
GPUPLANE_TOKEN_DAYS: int = _values["TOKEN_DAYS"]
GPUPLANE_TOKEN_MOST_DAYS: int = _values["TOKEN_MOST_DAYS"]
GPUPLANE_AUDIT_DAYS: int = _values["AUDIT_DAYS"]
GPUPLANE_BODY_LIMIT: int = _values["BODY_LIMIT"]
GPUPLANE_CONNECTIONS: int = _values["CONNECTIONS"]
GPUPLANE_CONNECTIONS_PER_ADDRESS: int = _values["CONNECTIONS_PER_ADDRESS"]
GPUPLANE_SIMULATE: bool = _values["SIMULATE"] and GPUPLANE_KUBECONFIG in ("", str(SIMULATED_KUBECONFIG))
GPUPLANE_SIMULATE_NODES: int = _values["SIMULATE_NODES"]
GPUPLANE_ADMIN_PASSWORD: str = _values["ADMIN_PASSWORD"]
GPUPLANE_OIDC: tuple[Provider, ...] = _values["OIDC"]
GPUPLANE_OIDC_SECRETS: dict[str, str] = _values["OIDC_SECRETS"]
GPUPLANE_LOCAL_ACCOUNTS: str = _values["LOCAL_ACCOUNTS"]
GPUPLANE_BREAK_GLASS_ACCOUNT: str = _values["BREAK_GLASS_ACCOUNT"]
GPUPLANE_SERVICE_ACCOUNT_ROLE: str = _values["SERVICE_ACCOUNT_ROLE"]
GPUPLANE_HSTS_SECONDS: int = _values["HSTS_SECONDS"]
GPUPLANE_TRUSTED_PROXIES: tuple[str, ...] = _values["FORWARDED_ALLOW_IPS"]
GPUPLANE_LOG_LEVEL: str = _values["LOG_LEVEL"]
LOGGING = logs.configure(GPUPLANE_LOG_LEVEL)


def _secret_key() -> str:
    """The configured key, else one made once and kept in the data folder (mode 0600)."""
    if _values["SECRET_KEY"]:
        return str(_values["SECRET_KEY"])
    path = GPUPLANE_DATA_DIR / "secret-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        data_folder.be_writable(GPUPLANE_DATA_DIR)
    fresh = secrets.token_urlsafe(50)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(fresh)
    return fresh


SECRET_KEY = _secret_key()
DEBUG: bool = _values["DEBUG"]
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", GPUPLANE_HOST, *_values["ALLOWED_HOSTS"]]

INSTALLED_APPS = [
    "access",  # before Django's own: its `createsuperuser` takes the place of theirs
    "gpuplane.pages.admin_app.Administration",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "audit",
    "nodes",
    "claims",
    "allocations",
    "autoscaling",
    "inference",
    "gpuplane",
]

MIDDLEWARE = [
    "gpuplane.operations.operations_middleware",
    "gpuplane.middleware.precedence",
    "gpuplane.middleware.readable_requests",
    "django.middleware.security.SecurityMiddleware",
    "gpuplane.middleware.protection",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "gpuplane.urls"
ASGI_APPLICATION = "gpuplane.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "NAME": "django",  # by which REST framework finds it
        "BACKEND": "gpuplane.rendering.Templates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES: dict[str, dict[str, Any]] = {
    "default": databases.describe(
        url=_values["DATABASE_URL"], data_dir=GPUPLANE_DATA_DIR, pool_size=_values["DATABASE_POOL"]
    )
}
GPUPLANE_DATABASE_POOL: int | None = (
    _values["DATABASE_POOL"] if "pool" in DATABASES["default"].get("OPTIONS", {}) else None
)
"""Connections of a process; None on SQLite, where each thread opens its own."""
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False

GPUPLANE_REDIS_URL: str = _values["REDIS_URL"] or f"unix://{GPUPLANE_DATA_DIR / 'redis.sock'}"

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_ENGINE = "access.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
AUTHENTICATION_BACKENDS = ["access.backends.CountedBackend"]
# `gpuplane.listeners.bodies` reads bodies whole and bounded; Django writes none of them to a file.
DATA_UPLOAD_MAX_MEMORY_SIZE = min(GPUPLANE_BODY_LIMIT, body_limits.LARGEST_OF_DJANGO_BYTES)
FILE_UPLOAD_MAX_MEMORY_SIZE = body_limits.LARGEST_OF_DJANGO_BYTES
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.MemoryFileUploadHandler"]
DATA_UPLOAD_MAX_NUMBER_FILES = 1
LOGIN_URL = "/sign-in/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "access.passwords.NotDerivedValidator"},
]

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "gpuplane.rest.authentication.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["gpuplane.rest.authentication.SignedIn"],
    "DEFAULT_PARSER_CLASSES": [
        "gpuplane.rest.codec.JsonParser",
        "gpuplane.rest.codec.MergePatchParser",
        "gpuplane.rest.codec.YamlParser",
    ],
    "DEFAULT_RENDERER_CLASSES": ["gpuplane.rest.codec.JsonRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "gpuplane.rest.codec.OneFormat",
    "DEFAULT_PAGINATION_CLASS": "gpuplane.rest.pagination.KeysetPagination",
    "DEFAULT_SCHEMA_CLASS": "gpuplane.rest.schema.Described",
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS: the OpenAPI document says it better
    "EXCEPTION_HANDLER": "gpuplane.rest.errors.handle",
    "URL_FORMAT_OVERRIDE": None,
}
REST_KNOX: dict[str, Any] = {"TOKEN_TTL": None, "AUTH_HEADER_PREFIX": "Bearer"}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "gpuplane",
    "DESCRIPTION": "GPUs of a Kubernetes fleet: what exists, what is asked, who holds what, and why.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "AllocationState": "allocations.choices.State.values",
        "NodeState": "nodes.choices.NodeState.values",
        "EventKind": "audit.choices.EventKind.values",
        "ClaimKind": [("GpuClaim", "GpuClaim")],
        "GangKind": [("GpuGang", "GpuGang")],
        "QueueKind": [("GpuQueue", "GpuQueue")],
        "InferenceRuntime": "gpuplane.rest.inference_schema.RUNTIMES",
    },
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},  # or a server elsewhere would get the schema
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}
