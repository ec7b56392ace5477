import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from knox.models import AuthToken

from access import tokens
from access.choices import Role
from access.models import Profile, TokenUse
from access.tokens import uses_write

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
        assert verified(token, by=tokens.verify_cached).name == "ada"


def test_an_unknown_token_asks_once_too(db, django_assert_num_queries):
    with django_assert_num_queries(1):
        assert tokens.verify("f" * 64) is None
        assert tokens.verify("f" * 64) is None
    assert tokens.verify_cached("f" * 64) is None


@pytest.mark.parametrize(
    "token", ["", "f" * 65, "f" * 63, "x" * 64, "F" * 64, "ü", "a\x00b", "\ud800", "f" * 64 + "\n"]
)
def test_what_cannot_be_a_token_is_nobodys_and_costs_no_query(token, db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert tokens.verify(token) is None


def test_a_revoked_token_is_refused_once_the_answer_is_old(user):
    """VIEW-6 revocation is seen everywhere within seconds."""
    token = tokens.issue(user)
    assert tokens.verify_user(token, clock=lambda: 100.0) is not None
    AuthToken.objects.all().delete()  # as another process does it
    assert tokens.verify_user(token, clock=lambda: 100.0 + tokens.FRESH_SECONDS - 1) is not None
    assert tokens.verify_cached(token, clock=lambda: 100.0 + tokens.FRESH_SECONDS) is None
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
        tokens.verify(f"{number:064x}")
    assert len(tokens._bad._answers) == tokens.MOST_KNOWN
    with django_assert_num_queries(0):
        assert tokens.verify(token) is not None


def test_threads_share_the_answers(user):
    token = tokens.issue(user)
    tokens.verify(token)
    names = []
    threads = [
        threading.Thread(target=lambda: names.append(verified(token, by=tokens.verify_cached).name)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["ada"] * 8


def test_a_token_that_ends_is_refused_from_that_moment(user):
    """VIEW-6 not when the answer about it is old: an end that comes within those seconds counts."""
    token = tokens.issue(user, ends_at=timezone.now() + timedelta(seconds=5))
    assert tokens.verify_user(token, clock=lambda: 100.0) is not None
    assert tokens.verify_cached(token, clock=lambda: 104.0) is not None
    assert tokens.verify_cached(token, clock=lambda: 105.1) is None
    assert tokens.verify(tokens.issue(user, ends_at=timezone.now() - timedelta(seconds=1))) is None


def test_an_answer_that_was_overtaken_by_a_change_is_not_kept(user, monkeypatch):
    """VIEW-6 a token that is revoked while another thread looks it up is not remembered as good."""
    token = tokens.issue(user)
    look_up = tokens._look_up

    def slowly(token):
        found = look_up(token)
        tokens.revoke_all(user)
        return found

    monkeypatch.setattr(tokens, "_look_up", slowly)
    assert tokens.verify(token) is not None
    monkeypatch.undo()
    assert tokens.verify_cached(token) is None
    assert tokens.verify(token) is None


def test_one_accounts_change_leaves_the_others_in_memory(user, django_assert_num_queries):
    other = User.objects.create(username="bob")
    mine, theirs = tokens.issue(user), tokens.issue(other)
    for token in (mine, theirs):
        tokens.verify(token)
    tokens.forget("ada")
    with django_assert_num_queries(0):
        assert verified(theirs, by=tokens.verify_cached).name == "bob"
        assert tokens.verify_cached(mine) is None


def test_uses_are_written_later_and_only_for_tokens_that_are_there(user, django_assert_num_queries):
    """VIEW-6 when a token was last used: noted without a query, written together."""
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    first, second = tokens.issue(user), tokens.issue(user)
    tokens.used()
    times = iter((100.0, 160.0, 170.0))
    for token in (first, second, first):
        tokens.verify_user(token, clock=lambda: next(times))
    with django_assert_num_queries(0):
        tokens.verify_cached(first, clock=lambda: 175.0)
        ago = tokens.used(clock=lambda: 180.0)
    assert sorted(ago.values()) == [5.0, 20.0]
    assert tokens.used() == {}
    AuthToken.objects.filter(token_key=second[:15]).delete()
    with django_assert_num_queries(4):  # a savepoint, the tokens that are there, one statement
        uses_write(ago=ago, now=now)
    assert [use.last_used_at for use in TokenUse.objects.all()] == [now - timedelta(seconds=5)]
    uses_write(ago={row.pk: 1.0 for row in AuthToken.objects.all()}, now=now)
    assert [use.last_used_at for use in TokenUse.objects.all()] == [now - timedelta(seconds=1)]
    tokens.revoke_all(user)
    assert not TokenUse.objects.exists()
