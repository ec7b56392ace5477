"""What-if: a fleet and pods from a file in, decisions and reasons out.

`read_scenario` (text) or `parse_scenario` (decoded), then `run_scenario`. Called by `manage.py simulate` and, in a
process of its own, by `whatif`. Invariants:
- The engine and the dialects of the product decide, by the file alone. No Django, no database.
- A scenario above its `Limits` of size and cost is refused before anything is run.
"""

from allocations.scenario.parse import Limits, Scenario, parse_scenario, read_scenario
from allocations.scenario.result import Result, table_text
from allocations.scenario.run import run_scenario

__all__ = ["Limits", "Result", "Scenario", "parse_scenario", "read_scenario", "run_scenario", "table_text"]
