"""The table of docs/dialects.md: what stands in one row is one request, whichever dialect says it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from claims.dialects.claim_manifest import parse_claim_spec
from claims.dialects.ignored import IGNORED
from claims.dialects.parse import parse_pod
from claims.dialects.request import DeviceRequest
from kube.keys import CLAIM
from kube.objects import Pod

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "dialects.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.count("|") == 7][2:]


def pod(*, limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None) -> Pod:
    container = {"name": "main", "resources": {"limits": limits or {}}}
    manifest = {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": {"containers": [container]}}
    return msgspec.convert(manifest, Pod)


def asked(cell: str, column: int) -> list[DeviceRequest]:
    """What the words of a cell ask for: one request, two where the column is for two prefixes."""
    words = yaml.safe_load("{" + cell.strip("`") + "}")
    if column == 0:
        pods, spec = [pod(annotations={CLAIM: "one"})], parse_claim_spec({"devices": words})
    elif column == 3:
        pods, spec = [pod(annotations={name: str(value) for name, value in words.items()})], None
    else:
        prefixes = ("koordinator.sh", "kubernetes.io") if column == 2 else ("nvidia.com",)
        pods, spec = [pod(limits={f"{one}/{name}": value for name, value in words.items()}) for one in prefixes], None
    found = [parse_pod(one, find_claim=lambda _namespace, _name: spec) for one in pods]
    requests = [one for one in found if isinstance(one, DeviceRequest)]
    assert len(requests) == len(found), found
    return requests


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in ROWS])
def test_a_row_is_one_request(row: list[str]) -> None:
    """DEV-1 the same need in every dialect is the same devices and amounts."""
    said = [
        [msgspec.structs.replace(ask, container="") for ask in request.asks]
        for column, cell in enumerate(row[1:])
        if cell
        for request in asked(cell, column)
    ]
    assert len(said) >= 1
    assert all(asks == said[0] for asks in said), said


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 13
    assert all(re.fullmatch("(`[^`]+`)?", cell) for row in ROWS for cell in row[1:])


def test_what_is_ignored_is_the_table_of_the_code() -> None:
    section = PAGE.partition("## What is ignored")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    listed = [(place, name.strip(" `"), instead) for place, names, instead in rows[2:] for name in names.split(",")]
    assert sorted(listed) == sorted((str(row.place), row.name, row.meaning) for row in IGNORED)
