"""Certificates and keys for a federation on one machine; a real one has an authority of its own."""

import datetime
import ipaddress
import os
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

AUTHORITY = "ca.crt"
SERVER = "server.crt"
SERVER_KEY = "server.key"
_DAYS = 30


def write_authority(folder: pathlib.Path, host: str) -> None:
    """Write an authority's certificate, and a server's certificate and key signed by it."""
    authority, key = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    )
    root = (
        _certificate(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA384())
    )
    server = (
        _certificate(subject, issuer, key.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    (folder / AUTHORITY).write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / SERVER).write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / SERVER_KEY, key, serialization.PrivateFormat.PKCS8)


def write_node_key(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Write a SuperNode's key pair and return the private key's path; ``.pub`` is the other."""
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / f"{name}.key"
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")
    return path


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_private(
    path: pathlib.Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    # Readable by its owner alone from its first byte on.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
