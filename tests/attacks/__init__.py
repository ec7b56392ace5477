"""Attacks on the running product: a suite of its own, run by `make attack-test`.

`product` starts the real web process with its three listeners, `honest` is a process that behaves as a scheduler, an
API server, agents, browsers and probes do and writes down how it was served, `attacker` is a process that runs the
attacks of one window, and `test_attacks` judges. Attacks live in `tests/attacks/attacks`, one module a subject: a
coroutine function that is given a `Target` and runs until it is cancelled.

    @attack("endless-header", window="connections")
    async def endless_header(target: Target) -> None:
        '''One line: what it does and what it did before.'''

Attacks of one window run together, for SECONDS. An attack is light: what counts is what it makes the product do, not
how busy it keeps the machine. It expects to be refused, and comes again after a pause. By itself, against a running
product:

    python -m tests.attacks.attacker TARGET.json 20 endless-header
"""
