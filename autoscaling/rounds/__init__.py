"""One round of the growth loop: follow what is under way, plan, make and delete trigger pods, tell the pods that wait.

`run` is the entry. Each step reads rows and the cluster and writes what differs, so any of them may be the last one
that a process takes.
"""
