"""docker/compose.yaml, without an engine: each command, setting, user and volume is one that the product has; nothing
is published beyond loopback, and no password is written down.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from django.core.management import get_commands

from gpuplane.listeners.plan import is_loopback, listen_addresses
from gpuplane.run import procfile
from gpuplane.settings import variables
from simulator import __main__ as simulator

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docker" / "compose.yaml").read_text()
FILE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "gpuplane"}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
GIVEN = {"POSTGRES_PASSWORD": "one", "REDIS_PASSWORD": "two"}
"""What the example makes of docker/.env."""
ASKED = re.compile(r"\$\{(\w+):\?[^}]+\}")
"""A variable that compose refuses to start without, or with an empty one."""


def filled(text: str) -> str:
    """With the passwords, as compose does it."""
    return ASKED.sub(lambda found: GIVEN[found[1]], text)


def settings_of(name: str) -> dict[str, str]:
    return {key: filled(value) for key, value in SERVICES[name]["environment"].items()}


def of_the_image(pattern: str) -> str:
    """What the Dockerfile says last."""
    return str(re.findall(pattern, DOCKERFILE, re.MULTILINE)[-1])


def test_processes_run_what_the_procfile_says() -> None:
    """Redis is the one that is not gpuplane's image; bootstrap is a command of manage.py, as in the chart."""
    commands = {name: service["command"] for name, service in OURS.items()}
    assert commands.pop("bootstrap") == ["python", "manage.py", "bootstrap"]
    assert get_commands()["bootstrap"] == "gpuplane"
    expected = procfile.read(ROOT / "Procfile")
    del expected["redis"]
    assert commands == expected
    assert set(SERVICES) == {*OURS, "postgres", "redis"}


@pytest.mark.parametrize("name", OURS)
def test_settings_are_known(name: str) -> None:
    """All that a process of several machines needs, each readable, the same for all but web's address."""
    told = settings_of(name)
    given = {key: value for key, value in told.items() if key != "DJANGO_SETTINGS_MODULE"}
    assert set(given) <= {variable.name for variable in variables.VARIABLES}
    read = variables.read(given)
    assert all(read[key] for key in ("DATABASE_URL", "REDIS_URL", "SIMULATE"))
    assert Path(read["KUBECONFIG"]) == read["DATA_DIR"] / simulator.FOLDER / simulator.KUBECONFIG
    own = {"GPUPLANE_HOST", "GPUPLANE_PORT"} if name == "web" else set()
    assert set(told.items()) - set(settings_of("bootstrap").items()) == {(key, told[key]) for key in own}
    assert told["DJANGO_SETTINGS_MODULE"] == "gpuplane.settings"


def test_addresses_are_those_of_services() -> None:
    told = settings_of("web")
    database, redis = urlsplit(told["GPUPLANE_DATABASE_URL"]), urlsplit(told["GPUPLANE_REDIS_URL"])
    server = settings_of("postgres")
    assert (database.hostname, database.username, database.path) == ("postgres", server["POSTGRES_USER"], "/gpuplane")
    assert server["POSTGRES_USER"] == "gpuplane"  # the database's name where POSTGRES_DB is not set
    assert database.password == server["POSTGRES_PASSWORD"] == GIVEN["POSTGRES_PASSWORD"]
    words = [filled(word) for word in SERVICES["redis"]["command"]]
    assert (redis.hostname, redis.password) == ("redis", words[words.index("--requirepass") + 1])
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(SERVICES["postgres"]["command"]))
    pooled = len(set(OURS) - {"beat", "simulator", "bootstrap"}) * variables.read({})["DATABASE_POOL"]
    assert pooled < int(most)


@pytest.mark.parametrize("name", OURS)
def test_containers_are_as_the_image_expects(name: str) -> None:
    """Its user, its data folder, /tmp, and nothing else that can be written."""
    service = OURS[name]
    assert service["user"] == of_the_image(r"^USER (\S+)$")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    folder = settings_of(name)["GPUPLANE_DATA_DIR"]
    assert folder == of_the_image(r"GPUPLANE_DATA_DIR=(\S+)")
    assert service["volumes"] == [f"data:{folder}"]
    assert [one.partition(":")[0] for one in service["tmpfs"]] == ["/tmp"]
    assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_names_are_declared_and_used() -> None:
    """Volumes and networks both ways; who is waited for exists, and can be found healthy."""
    used = {
        kind: {one.partition(":")[0] for service in SERVICES.values() for one in service.get(kind, [])}
        for kind in ("volumes", "networks")
    }
    assert used == {kind: set(FILE[kind]) for kind in used}
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            wants = {"service_healthy": "healthcheck", "service_completed_successfully": "command"}
            assert wants[how["condition"]] in SERVICES[other], (name, other)
        mode = service.get("network_mode", "")
        assert bool(mode) != ("networks" in service), name
        assert not mode or mode.removeprefix("service:") in service["depends_on"]


def test_everything_waits_for_what_it_needs() -> None:
    def before(name: str) -> set[str]:
        found = set(SERVICES[name].get("depends_on", {}))
        return found.union(*(before(one) for one in found)) if found else found

    assert {name for name in OURS if before(name) >= {"postgres", "redis", "bootstrap"}} == set(OURS) - {"bootstrap"}
    assert before("bootstrap") == {"postgres", "redis"}


def test_nothing_is_published_beyond_loopback() -> None:
    """The pages at one port of this machine; the databases on a network that leads nowhere."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["simulator"]
    ((address, outside, inside),) = (one.rsplit(":", 2) for one in published["simulator"])
    assert is_loopback(address)
    values = variables.read(settings_of("web") | {"DJANGO_SETTINGS_MODULE": ""})
    planned = SimpleNamespace(
        **{f"GPUPLANE_{name}": values[name] for name in ("HOST", "MAIN_TLS", "AGENTS_ONLY")},
        **{f"GPUPLANE_{name}": values[name] for name in ("EXTENDER_LISTEN", "WEBHOOK_LISTEN")},
    )
    (listener,) = listen_addresses(planned, port=values["PORT"])
    assert str(listener.port) == inside == outside  # the address in credentials.json is one from both sides
    assert not is_loopback(listener.host)
    assert all(service.get("network_mode", "service:simulator") == "service:simulator" for service in SERVICES.values())
    assert FILE["networks"]["inside"] == {"internal": True}
    assert {name for name, service in SERVICES.items() if "outside" in service.get("networks", [])} == {"simulator"}


def test_no_password_is_written() -> None:
    """Each is asked for under a name that the first lines of the file make a random one for."""
    plain = ASKED.sub("<asked>", "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#")))
    assert "$" not in plain
    assert set(re.findall(r"PASSWORD: *(.*)", plain)) == {"<asked>"}
    assert set(re.findall(r"://[^:/@]*:([^@/]*)@", plain)) == {"<asked>"}
    assert set(re.findall(r"--requirepass, \"([^\"]*)\"", plain)) == {"<asked>"}
    names = {found[1] for found in ASKED.finditer(TEXT)}
    assert names == set(GIVEN)
    assert all(f"{name}=%s" in TEXT for name in names)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "docker/.env" in ignored
