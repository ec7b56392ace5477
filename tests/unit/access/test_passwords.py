"""Which passwords are refused, wherever one is set."""

import io

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from access import services
from access.actors import SYSTEM
from access.choices import Role
from access.errors import BadInput
from audit.models import Event
from gpuplane import credentials
from storage.clock import database_now

WEAK = [
    pytest.param("admin-admin", id="the name twice"),
    pytest.param("admin-admin-admin", id="the name three times"),
    pytest.param("Adm1n-4dmin-2026", id="the name in lookalikes"),
    pytest.param("gpuplane-admin-2026!", id="product, name and year"),
    pytest.param("gpuplane-gpuplane", id="the product twice"),
    pytest.param("password1234567", id="a word and digits"),
    pytest.param("P@ssw0rd-P@ssw0rd", id="the word in lookalikes"),
    pytest.param("changeme-changeme", id="an installer's default"),
    pytest.param("kubernetes-admin", id="the cluster's own admin"),
    pytest.param("aaaaaaaaaaaaaaaa", id="one letter"),
    pytest.param("xyzxyzxyzxyzxyz", id="a piece repeated"),
    pytest.param("481516234248151", id="digits alone"),
    pytest.param("qwertyuiop-123456", id="a row of keys"),
    pytest.param("short-pass1", id="eleven characters"),
    pytest.param("ＡＤＭＩＮ－ａｄｍｉｎ－ａｄｍｉｎ", id="the name full-width"),
]
GOOD = [
    "k7wp2-mmx4q-9tbrd-hh3vc",
    "a long and quiet river",
    "correct-horse-battery",
    "given-by-a-secret-of-the-cluster",
]


@pytest.mark.parametrize("password", WEAK)
def test_guessable_ones_are_refused(password):
    with pytest.raises(ValidationError):
        validate_password(password, User(username="admin"))


@pytest.mark.parametrize("password", GOOD)
def test_others_pass(password):
    validate_password(password, User(username="admin"))


@pytest.mark.parametrize("password", ["ann.lee-ann.lee", "Lee-Ann-Lee-2026", "ann_lee@example"])
def test_nothing_of_the_account_itself(password):
    with pytest.raises(ValidationError):
        validate_password(password, User(username="ann.lee", email="ann.lee@example.org"))


def test_what_bootstrap_makes_up_passes():
    for _ in range(50):
        validate_password(credentials._random_password(), User(username="admin"))


@pytest.mark.django_db
class TestEverywhere:
    """Every place that sets a password asks the rules."""

    WEAK = "admin-admin-admin"

    def test_services(self):
        with pytest.raises(BadInput):
            services.user_create(
                username="admin", password=self.WEAK, role=Role.VIEWER, actor=SYSTEM, now=database_now()
            )

    def test_bootstrap(self, settings, tmp_path):
        settings.GPUPLANE_DATA_DIR = tmp_path
        with pytest.raises(BadInput):
            credentials.ensure(url="http://x", password=self.WEAK)
        assert not User.objects.exists()

    def test_createsuperuser(self, monkeypatch):
        monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", self.WEAK)
        with pytest.raises(CommandError, match="password"):
            call_command("createsuperuser", username="admin", interactive=False)
        assert not User.objects.exists()

        monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", GOOD[0])
        call_command("createsuperuser", username="admin", interactive=False, stdout=io.StringIO())
        admin = User.objects.get()
        assert (admin.is_superuser, admin.is_staff, admin.profile.role) == (True, True, Role.ADMIN)
        assert Event.objects.get().message == "account admin created as admin"

    def test_changepassword(self, monkeypatch):
        User.objects.create_user("admin", password=GOOD[0])
        monkeypatch.setattr("getpass.getpass", lambda *_: self.WEAK)
        with pytest.raises(CommandError):
            call_command("changepassword", "admin")
        monkeypatch.setattr("getpass.getpass", lambda *_: GOOD[1])
        call_command("changepassword", "admin", stdout=io.StringIO())
        assert User.objects.get().check_password(GOOD[1])
        assert Event.objects.get().message == "password of admin changed"

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            pytest.param(
                "/accounts/new/", {"kind": "person", "username": "admin2", "role": "viewer"}, id="a new account"
            ),
            pytest.param("/accounts/{pk}/", {"change": "password"}, id="another's"),
            pytest.param("/password/", {"old": GOOD[1]}, id="one's own"),
        ],
    )
    def test_the_pages(self, client, path, fields):
        root = User.objects.create_superuser("admin", password=GOOD[1])
        client.force_login(User.objects.create_superuser("boss") if "change" in fields else root)
        answer = client.post(path.format(pk=root.pk), {**fields, "password": self.WEAK, "again": self.WEAK})
        assert answer.status_code == 400
        assert "made of the account" in answer.content.decode()
        root.refresh_from_db()
        assert root.check_password(GOOD[1])
        assert not User.objects.filter(username="admin2").exists()
