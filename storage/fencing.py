"""Fencing numbers in the database: of two workers only the one that began last goes on.

Used by the loops of queues, growth and slots, each with a model of one row whose `number` it is. Invariant: a number
that was passed in a transaction is the newest until that transaction ends, since the row is locked by it.
"""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import F

from storage.transactions import atomic_retry

ONLY = 1
"""The id of the row."""


class Fence(models.Model):
    """The number of the newest round, in a row of id 1. No transaction plans under a lower one."""

    number = models.BigIntegerField(default=0)

    objects: ClassVar[models.Manager[Self]] = models.Manager()

    class Meta:
        """Each loop has a table of its own."""

        abstract = True

    def __str__(self) -> str:
        """The number."""
        return str(self.number)


@atomic_retry
def begin(fence: type[Fence]) -> int:
    """Begin, which ends the work of every other; the number to write under."""
    fence.objects.get_or_create(pk=ONLY)
    fence.objects.filter(pk=ONLY).update(number=F("number") + 1)
    return fence.objects.get(pk=ONLY).number


def is_newest(fence: type[Fence], number: int) -> bool:
    """Whether nobody has begun since; if so, others are kept out for this transaction."""
    return bool(fence.objects.filter(pk=ONLY, number=number).update(number=number))
