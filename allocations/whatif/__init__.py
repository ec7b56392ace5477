"""What-if runs of the web process, each in a process of its own (VIEW-4).

`run.what_if` is called by REST and the page; `run_slots` limits the runs, `confined` starts, watches and ends the
process, and `program` is what runs there. `manage.py simulate` runs scenarios without a process of their own.
Invariants:
- The process gets the text and nothing else: no environment, no open file, no Django.
- Time, memory and the size of the answer are bounded, and the process ends with its run and with its client.
"""
