import shutil
import ssl
from typing import Any

import pytest

from gpuplane.listeners.certificates import Certificates
from gpuplane.listeners.plan import ListenAddressRefused, Tls
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


def presented(context, authority):
    """Common name of the certificate that a handshake in memory shows."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    client_context = ssl.create_default_context(cadata=authority.pem)
    client = client_context.wrap_bio(outgoing, incoming, server_hostname="127.0.0.1")
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        if client.version() is not None and client.getpeercert():
            break
    shown: Any = client.getpeercert()  # typeshed's union of every field's shape is no help here
    return dict(part[0] for part in shown["subject"])["commonName"]


def test_changed_pair_serves_without_a_restart(tmp_path, authority):
    certificate, key = authority.issue("first")
    certificates = Certificates(Tls(certificate, key))
    assert presented(certificates.context, authority) == "first"
    assert not certificates.refresh()

    fresh = authority.issue("second")
    shutil.copy(fresh[0], certificate)
    assert not certificates.refresh(), "new certificate, old key: not taken"
    assert presented(certificates.context, authority) == "first"

    shutil.copy(fresh[1], key)
    assert certificates.refresh()
    assert presented(certificates.context, authority) == "second"


def test_vanished_file_leaves_the_old_pair(tmp_path, authority):
    certificate, key = authority.issue("first")
    certificates = Certificates(Tls(certificate, key))
    certificate.unlink()

    assert not certificates.refresh()
    assert presented(certificates.context, authority) == "first"


def test_unreadable_pair_refuses_the_start(tmp_path):
    with pytest.raises(ListenAddressRefused, match="TLS cannot be set up"):
        Certificates(Tls(tmp_path / "none.crt", tmp_path / "none.key"))


def test_client_ca_makes_certificates_required(tmp_path, authority):
    certificate, key = authority.issue("server")

    assert Certificates(Tls(certificate, key, authority.certificate)).context.verify_mode == ssl.CERT_REQUIRED
    assert Certificates(Tls(certificate, key)).context.verify_mode == ssl.CERT_NONE
