"""Every `GPUPLANE_*` environment variable: name, type, default, meaning. Read once at start.

`docs/settings.md` is generated from this table (`manage.py settings_table`), and a test compares them.
A value that does not parse stops the start with one message that names each bad variable.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BadSetting(Exception):
    """One or more variables do not parse; the text names each, the rule, and what was given."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `parse` raises ValueError with the rule in plain words."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


def _text(value: str) -> str:
    return value.strip()


def _path(value: str) -> Path | None:
    return Path(value).expanduser() if value.strip() else None


def _flag(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("give 1 or 0")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.strip().isdecimal():
            raise ValueError(f"give a whole number from {low} to {high}")
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"give a whole number from {low} to {high}")
        return number

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip() not in words:
            raise ValueError("give one of " + ", ".join(words))
        return value.strip()

    return parse


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in value.split(",")) if word)


def _proxies(value: str) -> tuple[str, ...]:
    """Addresses and networks as `ipaddress` writes them. None may name everybody."""
    found = []
    for word in _words(value):
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError as error:
            raise ValueError(f"{word} is no IP address or network; give them separated by commas") from error
        if network.prefixlen == 0:
            raise ValueError(f"{word} is everybody; name the proxies")
        found.append(str(network) if "/" in word else str(network.network_address))
    return tuple(found)


def _listen(value: str) -> str:
    """`[scheme://]host:port`, checked for shape here; the doors check what each scheme allows."""
    text = value.strip()
    if not text:
        return ""
    address = text.split("://", 1)[-1]
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError("give [http://|https://]host:port")
    if "://" in text and text.split("://", 1)[0] not in {"http", "https"}:
        raise ValueError("give [http://|https://]host:port")
    return text


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "GPUPLANE_DATA_DIR", "path", "var", "where the embedded database, Redis, logs and credentials live", _path
    ),
    Variable("GPUPLANE_HOST", "address", "127.0.0.1", "address of the main door", _text),
    Variable(
        "GPUPLANE_PORT",
        "port",
        "8000",
        "port of the main door: pages, REST, and the cluster's paths with a bearer token",
        _whole(0, 65535),
    ),
    Variable(
        "GPUPLANE_EXTENDER_LISTEN",
        "[scheme://]host:port",
        "",
        "a door for `/extender/` only; loopback without a scheme is plain HTTP without credentials, anything else HTTPS with a client certificate",
        _listen,
    ),
    Variable("GPUPLANE_WEBHOOK_LISTEN", "host:port", "", "a door for `/webhooks/` only, TLS", _listen),
    Variable("GPUPLANE_TLS_CERT", "path", "", "certificate (chain) of the TLS doors, re-read when it changes", _path),
    Variable("GPUPLANE_TLS_KEY", "path", "", "its private key", _path),
    Variable(
        "GPUPLANE_CLIENT_CA", "path", "", "CA whose client certificates the `https://` extender door accepts", _path
    ),
    Variable(
        "GPUPLANE_WEBHOOK_CLIENT_CA",
        "path",
        "",
        "CA whose client certificates alone the webhook door accepts, the API server's; empty: it asks for none, "
        "and looks a Binding's pod up only for whoever names the pod's UID",
        _path,
    ),
    Variable(
        "GPUPLANE_MAIN_TLS",
        "flag",
        "0",
        "the main door speaks TLS, with the certificate of the TLS doors; not under `make run`",
        _flag,
    ),
    Variable(
        "GPUPLANE_AGENTS_ONLY",
        "flag",
        "0",
        "this web process serves agents, probes and `/metrics` alone, and asks nothing of the API server but whose "
        "an agent's token is; not under `make run`",
        _flag,
    ),
    Variable(
        "GPUPLANE_DATABASE_URL",
        "URL",
        "",
        "`postgres://user:password@host/name`; empty: SQLite in the data folder",
        _text,
    ),
    Variable(
        "GPUPLANE_DATABASE_POOL",
        "number",
        "30",
        "PostgreSQL connections of one process at most; pages and REST leave 18 of them to filter, bind and agents",
        _whole(2, 200),
    ),
    Variable(
        "GPUPLANE_REDIS_URL",
        "URL",
        "",
        "`redis://…` or `unix://…`; empty: the embedded Redis of the data folder",
        _text,
    ),
    Variable(
        "GPUPLANE_KUBECONFIG", "path", "", "use this cluster; `in-cluster` inside a pod; empty: no Kubernetes", _text
    ),
    Variable("GPUPLANE_NAMESPACE", "name", "gpuplane-system", "namespace of the leases, made if missing", _text),
    Variable(
        "GPUPLANE_SERVICE_ACCOUNT",
        "list",
        "system:serviceaccount:gpuplane-system:gpuplane,system:serviceaccount:gpuplane-system:gpuplane-worker",
        "user names under which gpuplane's processes that bind (web and worker) speak to the API server; only they may "
        "write results and bind GPU pods",
        _words,
    ),
    Variable(
        "GPUPLANE_TRUSTED_USERS",
        "list",
        "",
        "further users that may write result annotations, such as the scheduler of another dialect",
        _words,
    ),
    Variable(
        "GPUPLANE_AGENT_SERVICE_ACCOUNT",
        "text",
        "system:serviceaccount:gpuplane-system:gpuplane-agent",
        "the ServiceAccount of agents: with a token bound to their pod they speak for that pod's node",
        _text,
    ),
    Variable("GPUPLANE_AGENT_AUDIENCE", "text", "gpuplane", "audience of agents' ServiceAccount tokens", _text),
    Variable(
        "GPUPLANE_SCHEDULER_NAME",
        "text",
        "gpu-scheduler",
        "`spec.schedulerName` of the kube-scheduler that asks us; pods that are taken over get it",
        _text,
    ),
    Variable(
        "GPUPLANE_GUARD",
        "word",
        "everywhere",
        "whose Bindings by others the webhook refuses: of all pods that ask for devices (`everywhere`), or, while a cluster is taken over, of those "
        "alone that name our scheduler or a GpuClaim (`ours`)",
        _one_of("everywhere", "ours"),
    ),
    Variable(
        "GPUPLANE_EXTENDER_MODE",
        "word",
        "decisive",
        "`decisive`: filter returns the one best node and holds it; `advisory`: every feasible node",
        _one_of("decisive", "advisory"),
    ),
    Variable(
        "GPUPLANE_VISIBLE_DEVICES",
        "word",
        "uuid",
        "how pods by GpuClaim that an earlier version admitted, with `CUDA_VISIBLE_DEVICES` alone, see their devices: `uuid` or `index`; "
        "beside `NVIDIA_VISIBLE_DEVICES`, which every pod gets now, both hold UUIDs",
        _one_of("uuid", "index"),
    ),
    Variable(
        "GPUPLANE_SHARE",
        "word",
        "gpupack",
        "shares go to the fullest device that fits (`gpupack`) or the emptiest (`gpuspread`)",
        _one_of("gpupack", "gpuspread"),
    ),
    Variable(
        "GPUPLANE_COUNT_NATIVE",
        "flag",
        "0",
        "pods that ask by `nvidia.com/gpu` carry one `gpu.scheduling/pods` as all others do, so that they and pods with claims preempt "
        "each other; node autoscalers then have to know of that resource",
        _flag,
    ),
    Variable(
        "GPUPLANE_NATIVE_MODE",
        "word",
        "exclusive",
        "for nodes of which mode pods by `nvidia.com/gpu` are meant that select none by `gpu.scheduling/mode` themselves: `exclusive`, or "
        "`device-plugin`, where kubelets choose the devices",
        _one_of("exclusive", "device-plugin"),
    ),
    Variable(
        "GPUPLANE_GPU_SPLIT",
        "number",
        "1",
        "how many `nvidia.com/gpu` a node in mode exclusive advertises for each GPU: more than one where pods share GPUs in HAMi's words, "
        "each of which counts as one; pods by `nvidia.com/gpu` are then counted as under `GPUPLANE_COUNT_NATIVE`",
        _whole(1, 100),
    ),
    Variable("GPUPLANE_HOLD_SECONDS", "seconds", "30", "life of a hold", _whole(1, 3600)),
    Variable(
        "GPUPLANE_LONG_HOLD_SECONDS",
        "seconds",
        "660",
        "life of a hold when the pod has unbound volume or resource claims",
        _whole(1, 7200),
    ),
    Variable(
        "GPUPLANE_COLLECT_SECONDS",
        "seconds",
        "10",
        "period of garbage collection; at most 30 keeps LEASE-4",
        _whole(1, 30),
    ),
    Variable(
        "GPUPLANE_RELOAD_SECONDS",
        "seconds",
        "60",
        "period of the full reload that checks the in-memory picture",
        _whole(5, 3600),
    ),
    Variable(
        "GPUPLANE_MINUTES_KEPT_HOURS", "hours", "48", "how long what devices did is kept by minute", _whole(1, 24 * 366)
    ),
    Variable("GPUPLANE_HOURS_KEPT_DAYS", "days", "90", "how long what devices did is kept by hour", _whole(1, 3650)),
    Variable("GPUPLANE_TOKEN_DAYS", "days", "90", "life of a person's API token where none is chosen", _whole(1, 3650)),
    Variable(
        "GPUPLANE_TOKEN_MOST_DAYS", "days", "366", "longest life that may be chosen for an API token", _whole(1, 3650)
    ),
    Variable("GPUPLANE_AUDIT_DAYS", "days", "90", "how long audit events are kept", _whole(1, 3650)),
    Variable(
        "GPUPLANE_BODY_LIMIT",
        "bytes",
        "33554432",
        "largest request body under `/extender/`, and of any other path whose own limit (`gpuplane/doors/body_limits.py`) is higher",
        _whole(1024, 1 << 30),
    ),
    Variable(
        "GPUPLANE_CONNECTIONS",
        "number",
        "8192",
        "connections that one listener has open at most, TLS handshakes among them (and 512 fewer than the open files that the process may have); where "
        "there is no room for another, the one that has been without a request for longest is closed",
        _whole(16, 1_000_000),
    ),
    Variable(
        "GPUPLANE_CONNECTIONS_PER_ADDRESS",
        "number",
        "512",
        "the same for one address (of IPv6 a /64), live streams of agents and browsers not counted, which together with the others may be three quarters "
        "of a listener's; no limit for loopback and for the proxies of FORWARDED_ALLOW_IPS",
        _whole(4, 1_000_000),
    ),
    Variable(
        "GPUPLANE_SIMULATE",
        "flag",
        "1",
        "`make run` brings a simulated fleet and workload (never with GPUPLANE_KUBECONFIG); 0: an empty control plane",
        _flag,
    ),
    Variable("GPUPLANE_SIMULATE_NODES", "number", "64", "size of the simulated fleet", _whole(1, 5000)),
    Variable("GPUPLANE_ALLOWED_HOSTS", "list", "", "further host names that the pages may be asked under", _words),
    Variable(
        "FORWARDED_ALLOW_IPS",
        "list",
        "",
        "addresses and networks of the proxies (an Ingress controller) whose `X-Forwarded-For` and `X-Forwarded-Proto` count on the main door; "
        "sign-ins are limited by the address that they name, and cookies are `Secure` where they say `https`; empty: nobody's",
        _proxies,
    ),
    Variable(
        "GPUPLANE_HSTS_SECONDS",
        "seconds",
        "31536000",
        "how long browsers that came over TLS come back over TLS alone (`Strict-Transport-Security`), never for loopback names; 0: not said",
        _whole(0, 63_072_000),
    ),
    Variable(
        "GPUPLANE_SECRET_KEY",
        "secret",
        "",
        "signing key of sessions; empty: made once and kept in the data folder",
        _text,
    ),
    Variable(
        "GPUPLANE_ADMIN_PASSWORD",
        "secret",
        "",
        "first password of the account `admin`, when `manage.py bootstrap` makes it; a password that was set later stays. No tokens are issued then (but for a simulated fleet); empty: made once and written to `credentials.json`, with tokens",
        _text,
    ),
    Variable(
        "GPUPLANE_LOG_LEVEL",
        "word",
        "info",
        "debug, info, warning or error",
        _one_of("debug", "info", "warning", "error"),
    ),
    Variable("GPUPLANE_DEBUG", "flag", "0", "Django's debug pages; never on a reachable address", _flag),
)


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values by name without the prefix. Raises BadSetting naming every variable that does not parse."""
    values: dict[str, Any] = {}
    problems = []
    for variable in VARIABLES:
        given = environ.get(variable.name, "").strip() or variable.default
        try:
            values[variable.name.removeprefix("GPUPLANE_")] = variable.parse(given)
        except ValueError as error:
            problems.append(f"{variable.name}={given!r}: {error}")
    known = {variable.name for variable in VARIABLES}
    problems += [
        f"{name}: no such setting; docs/settings.md lists them"
        for name in sorted(environ)
        if name.startswith("GPUPLANE_") and name not in known and name not in OUTSIDE
    ]
    if problems:
        raise BadSetting("settings cannot be read:\n  " + "\n  ".join(problems))
    return values


OUTSIDE = frozenset({"GPUPLANE_TOOLS_DIR", "GPUPLANE_TEST_DATABASE", "GPUPLANE_TEST_POSTGRES_BIN", "GPUPLANE_CHROMIUM"})
"""Variables of the test and build tools, not of the product."""
