"""The program on a GPU node that starts model runtimes, and its protocol.

In comes what is to run, out goes what runs, over `WS /ws/runners/<node>/` (docs/runner-protocol.md). Started by
`python -m runner`; the listeners and `inference` read `runner.protocol`. Invariants:
- No Django, and nothing of the server.
- A slot's process is started once: it is found again after a restart of the runner, by what it left on disk.
- A slot is stopped, or failed, once none of its processes is left.
- No command goes through a shell.
"""
