"""What-if runs of the web process, each in a process of its own (VIEW-4).

`run.what_if` is called by REST and the page; `turns` says who may run, `confined` starts, watches and ends the process, and `program` is what runs
there. `manage.py simulate` does without all of this: whoever starts it has a terminal to stop it from.
"""
