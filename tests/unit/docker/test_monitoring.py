"""The chart's alerts and dashboards, without helm: their shape, and that each alert is explained where it sends
people.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml

from tests.promql import selectors

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "docker" / "helm" / "gpuplane"
ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
BOARDS = sorted((CHART / "dashboards").glob("*.json"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
SPEC = {
    "type": "object",
    "additionalProperties": False,
    "required": ["groups"],
    "properties": {
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "rules"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "interval": DURATION,
                    "rules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["alert", "expr", "for", "labels", "annotations"],
                            "properties": {
                                "alert": {"type": "string", "pattern": "^Gpuplane[A-Za-z]+$"},
                                "expr": {"type": "string", "minLength": 1},
                                "for": DURATION,
                                "labels": TEXTS,
                                "annotations": TEXTS,
                            },
                        },
                    },
                },
            },
        }
    },
}
"""What a PrometheusRule's spec takes (monitoring.coreos.com/v1), as far as we use it; unknown fields are refused there
too.
"""


def test_rules_are_what_the_operator_takes() -> None:
    jsonschema.Draft7Validator(SPEC).validate(ALERTS)
    assert [name for name, count in Counter(group["name"] for group in ALERTS["groups"]).items() if count > 1] == []
    assert [name for name, count in Counter(rule["alert"] for rule in RULES).items() if count > 1] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_and_how_bad(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description"}
    assert list(selectors(rule["expr"]))
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    if "by (" in rule["expr"]:
        assert named <= set(re.findall(r"by \(([^)]*)\)", rule["expr"])[0].split(", ")) - {"le"}


def test_each_alert_is_explained() -> None:
    """VIEW-5 the alerts that ship and those that operations.md explains are the same."""
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.partition("\n### Alerts\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `Gpuplane")]
    assert Counter(row[1].strip(" `") for row in rows) == Counter(rule["alert"] for rule in RULES)
    assert all(row[2].strip() and row[3].strip() for row in rows)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_loads_and_explains_itself(path: Path) -> None:
    """Every panel has an id of its own, a place that overlaps none, a title, a description, a unit and a question."""
    board = json.loads(path.read_text())
    assert board["uid"].startswith("gpuplane-")
    assert board["title"]
    assert board["templating"]["list"][0]["name"] == "datasource"
    panels = board["panels"]
    assert [one for one, count in Counter(panel["id"] for panel in panels).items() if count > 1] == []
    taken: Counter[tuple[int, int]] = Counter()
    for panel in panels:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24, panel["title"]
        taken.update((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [place for place, count in taken.items() if count > 1] == []


def test_idle_is_who_holds_it_now() -> None:
    """VIEW-5 a largest value over time has series that ended, too: a GPU that changed hands is not its last
    holder's.
    """
    board = json.loads((CHART / "dashboards" / "fleet.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    over_time = [one for one in asked if "max_over_time(" in one]
    assert len(over_time) == 2
    for one in over_time:
        (metric,) = re.findall(r"max_over_time\(([^\[]+)\[30m\]\)", one)
        assert f"(max_over_time({metric}[30m]) < 5 and {metric}) and on (" in one


def test_dashboards_have_names_of_their_own() -> None:
    boards = [json.loads(path.read_text()) for path in BOARDS]
    assert len(boards) == 2
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 2
