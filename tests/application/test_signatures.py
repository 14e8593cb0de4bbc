"""A signature holds for one command in one context, and for no other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.application.signatures import (
    HEADER,
    SigningKey,
    Verifier,
    VerifyingKey,
    public_key,
    shared_key,
    signing_key,
)
from stream_svt.protocol.controls import COMMAND_LIMIT, CommandPhase, CommandState, Controls, Refusal
from stream_svt.protocol.sealing import RecordContext
from tests.support.keys import ed25519_pair

CONTEXT = RecordContext("cluster", "shop", "shop.control", 1)
VALUE = b'{"id":"a","action":"resample","dataset":"today","state":"5e","number":1}'
SECRET = bytes(range(32))


@dataclass
class Record:
    offset: int
    value: bytes | None = VALUE
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: bytes | None = None


PRIVATE, PUBLIC = ed25519_pair()
PAIRS = {"ed25519": (signing_key(PRIVATE), public_key(PUBLIC)), "hmac": shared_key(SECRET)}


@pytest.fixture(params=PAIRS)
def pair(request) -> tuple[SigningKey, VerifyingKey]:
    return PAIRS[request.param]


def test_a_signed_command_is_heard_where_it_was_signed_for_also_beside_keys_of_the_other_kind(pair) -> None:
    signing, verifying = pair
    assert signing.name == verifying.name
    record = Record(7, headers=(signing.header(CONTEXT, VALUE),))
    for keys in ([verifying], [verifying for _, verifying in PAIRS.values()]):
        assert Verifier(CONTEXT, keys)(record) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, VALUE) for name in ("cluster", "application", "topic", "shard")),
        *(
            ("", VALUE.replace(b'"number":1', it))
            for it in (b'"number":2', b'"number":1 ', b'"number":1,"now":true')
        ),
    ],
)
def test_a_command_moved_to_another_context_or_changed_is_refused(pair, field: str, value: bytes) -> None:
    signing, verifying = pair
    record = Record(7, value, (signing.header(CONTEXT, VALUE),))
    there = replace(CONTEXT, **{field: 0 if field == "shard" else "other"}) if field else CONTEXT
    assert Verifier(there, [verifying])(record) == Refusal.BAD_SIGNATURE


def test_an_unsigned_command_and_an_unknown_key_are_named(pair) -> None:
    _, verifying = pair
    verifier = Verifier(CONTEXT, [verifying])
    stranger = signing_key(ed25519_pair()[0])
    assert verifier(Record(0)) == Refusal.UNSIGNED
    for headers in ((("other", b"x"),), (("", None),), (("\ufffd", None), (HEADER.upper(), b"x"))):
        assert verifier(Record(0, headers=headers)) == Refusal.UNSIGNED
    assert verifier(Record(0, headers=(stranger.header(CONTEXT, VALUE),))) == Refusal.UNKNOWN_KEY


def test_a_key_does_not_answer_for_another_algorithm() -> None:
    signing, _ = PAIRS["hmac"]
    name, header = signing.header(CONTEXT, VALUE)
    disguised = header.replace(b"hmac-sha256", b"ed25519")
    verifier = Verifier(CONTEXT, [verifying for _, verifying in PAIRS.values()])
    assert verifier(Record(0, headers=((name, disguised),))) == Refusal.UNKNOWN_KEY


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda header, name: [header.replace(b"v3 ", b"v2 ")],
        lambda header, name: [f"v3 {name} ".encode()],
        lambda header, name: [f"v3 {name} {'00' * 32}".encode()],
        lambda header, name: [f"v3 {name} {'00' * 64}".encode()],
        lambda header, name: [header, header],
        lambda header, name: [b""],
        lambda header, name: [None],
        lambda header, name: [None, None],
    ],
    ids=range(8),
)
def test_a_signature_of_another_form_or_length_and_two_of_them_are_bad(pair, spoilt) -> None:
    signing, verifying = pair
    headers = tuple((HEADER, value) for value in spoilt(signing.header(CONTEXT, VALUE)[1], signing.name))
    assert Verifier(CONTEXT, [verifying])(Record(7, headers=headers)) == Refusal.BAD_SIGNATURE


@given(st.data())
def test_no_change_of_one_byte_is_heard(data) -> None:
    signing, verifying = PAIRS["ed25519"]
    name, header = signing.header(CONTEXT, VALUE)
    at = data.draw(st.integers(0, len(header) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != header[at]))
    changed = header[:at] + bytes([byte]) + header[at + 1 :]
    assert Verifier(CONTEXT, [verifying])(Record(7, headers=((name, changed),))) in set(Refusal)


# --- in the shard


def test_a_signature_is_looked_at_before_the_content() -> None:
    controls = Controls(CommandState(), "5e", Verifier(CONTEXT, [PAIRS["hmac"][1]]))
    records = [Record(0, b"{"), Record(1, None), Record(2, b" " * (COMMAND_LIMIT + 1))]
    refused = [Refusal.UNSIGNED, "command-empty", "command-too-large"]
    assert [controls.read(record, CommandPhase.OPEN) for record in records] == refused
    signed = PAIRS["hmac"][0].header(CONTEXT, b"{")
    assert controls.read(Record(3, b"{", (signed,)), CommandPhase.OPEN) == "command-not-json"


# --- keys


def test_a_key_shows_its_name_alone_and_the_same_secret_always_has_the_same() -> None:
    signing, verifying = shared_key(SECRET)
    assert (
        signing.name == verifying.name == signing_key(SECRET.hex()).name != shared_key(SECRET[::-1])[1].name
    )
    shown = repr((signing, verifying))
    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown


def _pem(key, *, public: bool) -> str:
    if public:
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


OTHER_KIND, OTHER_SIZE = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
NO_PUBLIC_KEY = "must hold an Ed25519 public key"


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (public_key, ed25519_pair()[0], "holds a private key: workers need the public half only"),
        (public_key, _pem(OTHER_KIND, public=True), "another kind"),
        (public_key, _pem(OTHER_SIZE, public=True), "another kind"),
        (public_key, "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", NO_PUBLIC_KEY),
        (public_key, SECRET.hex(), NO_PUBLIC_KEY),
        (public_key, "", NO_PUBLIC_KEY),
        (signing_key, ed25519_pair()[1], "must hold an Ed25519 private key"),
        (signing_key, ed25519_pair(b"password")[0], "holds an encrypted key"),
        (signing_key, _pem(OTHER_KIND, public=False), "another kind"),
        (signing_key, SECRET.hex()[2:], "32 bytes"),
        (signing_key, "", "32 bytes"),
    ],
    ids=range(11),
)
def test_what_is_no_key_of_that_use_is_refused_without_its_content(read, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        read(text)
    assert not text or text.splitlines()[-1] not in str(refusal.value)
