"""One round of the slots' loop: put rows right, give memory back, give planned slots theirs, plan, tell requests.

`run` is the entry. Each step reads rows and writes what differs, so any of them may be the last one that a process
takes.
"""
