"""Deciding, apart from doing: a frozen snapshot and a request go in, a Decision comes out.

Called by placement, preemption, explain and scenarios. Invariants:
- Pure: no Django, no network, no clock, no chance. The same snapshot and request give the same decision.
- Work is bounded (`budget`), and so is what is kept between questions (`caches`).
- Every node that lost has a reason without its name, so equal reasons can be counted.
"""
