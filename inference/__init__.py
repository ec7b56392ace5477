"""Model slots on GPUs: models, the runners that start them, their slots, and the requests that they serve.

In come models (`services`), requests (the gateway) and reports of runners; out go slots that hold memory in the ledger,
which runners start and stop. `loop` plans them by `allocations.engine.slots`, the plan of what-if; `moves` alone
changes their states. `manage.py estimate` tells the memory of a GGUF file (`allocations.engine.gguf`). Invariants:
- A slot runs only in memory that the ledger has bound to it; pods and slots never have the same.
- Desired state is in the database; any process may die at any step, and the next round goes on from the rows.
"""
