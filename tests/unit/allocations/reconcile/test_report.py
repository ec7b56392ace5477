"""What the parts of a comparison add up to."""

import pytest

from allocations.reconcile.report import Difference, Found, Reconciled


def test_a_comparison_is_the_sum_of_its_parts():
    """LEASE-6 what was closed twice in one comparison counts twice, and every sentence stays in its place."""
    parts = [
        Reconciled(closed=2, lines=("closed two",)),
        Reconciled(),
        Reconciled(released=1, closed=1, lines=("released one", "closed one")),
    ]
    assert Reconciled.total(parts) == Reconciled(
        released=1, closed=3, lines=("closed two", "released one", "closed one")
    )
    assert Reconciled.total([]) == Reconciled()
    assert Reconciled.total([]).quiet


@pytest.mark.parametrize(
    ("problems", "want"),
    [
        pytest.param(["", ""], "", id="all went well"),
        pytest.param(["", "the server went away", "later"], "the server went away", id="the first one"),
    ],
)
def test_the_problem_that_came_first_is_reported(problems, want):
    done = Reconciled.total([Reconciled(problem=problem) for problem in problems])
    assert (done.problem, done.quiet) == (want, not want)


def test_what_was_done_about_leases_adds_up():
    """So do the differences, in their order."""
    one = Found(Reconciled(leases_taken=1, lines=("took lease a",)), (Difference("first"),))
    other = Found(
        Reconciled(leases_taken=1, leases_deleted=1, strangers_marked=1, strangers_cleared=1, lines=("took lease b",)),
        (Difference("second"),),
    )
    assert Found.total([one, other]) == Found(
        Reconciled(
            leases_taken=2,
            leases_deleted=1,
            strangers_marked=1,
            strangers_cleared=1,
            lines=("took lease a", "took lease b"),
        ),
        (Difference("first"), Difference("second")),
    )
    assert Found.total([Found(), Found()]) == Found()
