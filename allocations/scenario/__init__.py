"""What-if: a fleet and pods from a file in, decisions and reasons out, on nothing but the file. Pure: no Django, no database.

`read_scenario` (text) or `parse_scenario` (decoded), then `run_scenario`.
"""

from allocations.scenario.parse import Limits, Scenario, parse_scenario, read_scenario
from allocations.scenario.result import Result, table_text
from allocations.scenario.run import run_scenario

__all__ = ["Limits", "Result", "Scenario", "parse_scenario", "read_scenario", "run_scenario", "table_text"]
