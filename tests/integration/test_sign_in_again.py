"""Who is sent to sign in again, from a refresh in the middle of a page, comes back to what they looked at."""

import pytest

pytestmark = [pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True), pytest.mark.usefixtures("ledger_db")]


@pytest.mark.parametrize(
    ("shown", "want"),
    [
        pytest.param(
            "http://testserver/nodes/?q=n1&state=ready", "?next=/nodes/%3Fq%3Dn1%26state%3Dready", id="a view"
        ),
        pytest.param("http://testserver/nodes/n1/#gpu-3", "?next=/nodes/n1/", id="a place on a page"),
        pytest.param("http://elsewhere.example/nodes/", "", id="another host"),
        pytest.param("http://testserver//elsewhere.example/", "", id="a path that leads to another host"),
        pytest.param("//elsewhere.example/", "", id="no scheme"),
        pytest.param("javascript:alert(1)", "", id="a script"),
        pytest.param("http://[", "", id="no address"),
        pytest.param("http://testserver", "", id="no path"),
    ],
)
def test_a_refresh_comes_back_to_its_view(client, shown, want):
    """VIEW-6 whose session ends is led back to what they looked at, and nowhere else."""
    answer = client.get("/pending/count/", headers={"HX-Request": "true", "HX-Current-URL": shown})
    assert (answer.status_code, answer["HX-Redirect"]) == (204, f"/sign-in/{want}")


@pytest.mark.parametrize(
    ("shown", "want"),
    [
        pytest.param("http://testserver/claims/research/pair/", "?next=/claims/research/pair/", id="the form's page"),
        pytest.param("http://testserver/claims/?q=a", "?next=/claims/%3Fq%3Da", id="a list with a button"),
        pytest.param("http://elsewhere.example/", "", id="another host"),
        pytest.param(None, "", id="a browser that does not say"),
    ],
)
def test_a_form_comes_back_to_the_page_that_has_it(client, shown, want):
    """VIEW-6 the address that a form is sent to shows nothing to whoever has signed in again."""
    answer = client.post("/claims/research/pair/delete/", headers={"Referer": shown} if shown else {})
    assert (answer.status_code, answer["Location"]) == (302, f"/sign-in/{want}")
