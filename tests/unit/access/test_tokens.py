import threading

import pytest
from django.contrib.auth.models import User
from knox.models import AuthToken

from access import tokens
from access.choices import Role
from access.models import Profile

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _forgotten():
    tokens.forget()
    yield
    tokens.forget()


@pytest.fixture
def user():
    user = User.objects.create(username="ada")
    Profile.objects.create(user=user, role=Role.ADMIN)
    return user


def verified(token, by=tokens.verify):
    actor = by(token)
    assert actor is not None
    return actor


def test_a_token_is_its_users_and_is_kept_only_as_a_hash(user):
    """VIEW-6 API tokens: hashed, without an end."""
    token = tokens.issue(user)
    row = AuthToken.objects.get()
    assert token not in str(row.__dict__)
    assert row.expiry is None
    actor = verified(token)
    assert (actor.name, actor.role, actor.namespaces) == ("ada", Role.ADMIN, None)


def test_a_second_look_asks_nothing_of_the_database(user, django_assert_num_queries):
    token = tokens.issue(user)
    with django_assert_num_queries(1):
        tokens.verify(token)
    with django_assert_num_queries(0):
        assert verified(token).name == "ada"
        assert verified(token, by=tokens.known).name == "ada"


def test_an_unknown_token_asks_once_too(db, django_assert_num_queries):
    with django_assert_num_queries(1):
        assert tokens.verify("x" * 64) is None
        assert tokens.verify("x" * 64) is None
    assert tokens.known("x" * 64) is None


@pytest.mark.parametrize("token", ["", "x" * 257, "ü", "a\x00b", "\ud800"])
def test_what_cannot_be_a_token_is_nobodys(token, db):
    assert tokens.verify(token) is None


def test_a_revoked_token_is_refused_once_the_answer_is_old(user):
    """VIEW-6 revocation is seen everywhere within seconds."""
    token = tokens.issue(user)
    assert tokens.verify_user(token, clock=lambda: 100.0) is not None
    AuthToken.objects.all().delete()  # as another process does it
    assert tokens.verify_user(token, clock=lambda: 100.0 + tokens.FRESH_SECONDS - 1) is not None
    assert tokens.known(token, clock=lambda: 100.0 + tokens.FRESH_SECONDS) is None
    assert tokens.verify_user(token, clock=lambda: 100.0 + tokens.FRESH_SECONDS) is None


def test_revoking_here_holds_at_once(user):
    token = tokens.issue(user)
    assert tokens.verify(token) is not None
    assert tokens.revoke_all(user) == 1
    assert tokens.verify(token) is None


def test_a_shut_account_is_nobody(user):
    token = tokens.issue(user)
    User.objects.update(is_active=False)
    assert tokens.verify(token) is None


def test_guesses_neither_fill_the_memory_nor_push_good_tokens_out(user, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(tokens, "_look_up", lambda _: None)
    token = tokens.issue(user)
    monkeypatch.undo()
    tokens.verify(token)
    monkeypatch.setattr(tokens, "_look_up", lambda _: None)
    for number in range(tokens.MOST_KNOWN + 10):
        tokens.verify(f"guess-{number}")
    assert len(tokens._bad._answers) == tokens.MOST_KNOWN
    with django_assert_num_queries(0):
        assert tokens.verify(token) is not None


def test_threads_share_the_answers(user):
    token = tokens.issue(user)
    tokens.verify(token)
    names = []
    threads = [threading.Thread(target=lambda: names.append(verified(token, by=tokens.known).name)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["ada"] * 8
