"""A signature holds for one command at one place, and for nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.protocol.controls import COMMAND_LIMIT, Controls
from stream_svt.protocol.sealing import Place
from stream_svt.service.signatures import (
    HEADER,
    Refusal,
    SigningKey,
    Verifier,
    VerifyingKey,
    public_key,
    shared_key,
    signing_key,
)
from tests.support.keys import ed25519_pair

PLACE = Place("cluster", "shop", "shop.control", 1)
VALUE = b'{"id":"a","action":"resample","dataset":"today"}'
SECRET = bytes(range(32))
NOW = 1_800_000_000_000


@dataclass
class Record:
    offset: int
    value: bytes | None = VALUE
    headers: tuple[tuple[str, bytes], ...] = ()


def pairs() -> dict[str, tuple[SigningKey, VerifyingKey]]:
    private, public = ed25519_pair()
    return {"ed25519": (signing_key(private), public_key(public)), "hmac": shared_key(SECRET)}


PAIRS = pairs()


@pytest.fixture(params=PAIRS)
def pair(request) -> tuple[SigningKey, VerifyingKey]:
    return PAIRS[request.param]


def test_a_signed_command_is_heard_where_it_was_signed_for(pair) -> None:
    signing, verifying = pair
    assert signing.name == verifying.name
    record = Record(7, headers=(signing.header(PLACE, 7, NOW, VALUE),))
    assert Verifier(PLACE, [verifying])(record, 0) is None


def test_both_kinds_of_key_may_be_in_use_together() -> None:
    verifier = Verifier(PLACE, [verifying for _, verifying in PAIRS.values()])
    for signing, _ in PAIRS.values():
        assert verifier(Record(3, headers=(signing.header(PLACE, 3, NOW, VALUE),)), 0) is None


def test_a_copy_at_another_offset_is_a_replay(pair) -> None:
    signing, verifying = pair
    header = signing.header(PLACE, 7, NOW, VALUE)
    for offset in (0, 6, 8, 10**9):
        assert Verifier(PLACE, [verifying])(Record(offset, headers=(header,)), 0) == Refusal.REPLAYED


def test_what_was_signed_before_the_books_began_is_too_old_even_at_its_offset(pair) -> None:
    signing, verifying = pair
    verifier = Verifier(PLACE, [verifying])
    name, header = signing.header(PLACE, 7, NOW, VALUE)
    assert verifier(Record(7, headers=((name, header),)), NOW) is None
    assert verifier(Record(7, headers=((name, header),)), NOW + 1) == Refusal.TOO_OLD
    younger = header.replace(b" %d " % NOW, b" %d " % (NOW + 1))
    assert verifier(Record(7, headers=((name, younger),)), NOW + 1) == Refusal.BAD_SIGNATURE


@pytest.mark.parametrize("field", ["cluster", "application", "topic", "shard"])
def test_a_command_carried_to_another_place_is_refused(pair, field: str) -> None:
    signing, verifying = pair
    record = Record(7, headers=(signing.header(PLACE, 7, NOW, VALUE),))
    other = replace(PLACE, **{field: 0 if field == "shard" else "other"})
    assert Verifier(other, [verifying])(record, 0) == Refusal.BAD_SIGNATURE


def test_another_content_or_an_altered_offset_is_refused(pair) -> None:
    signing, verifying = pair
    verifier = Verifier(PLACE, [verifying])
    name, header = signing.header(PLACE, 7, NOW, VALUE)
    assert verifier(Record(7, VALUE + b" ", ((name, header),)), 0) == Refusal.BAD_SIGNATURE
    assert verifier(Record(8, headers=((name, header.replace(b" 7 ", b" 8 ")),)), 0) == Refusal.BAD_SIGNATURE


def test_an_unsigned_command_and_an_unknown_key_are_named(pair) -> None:
    _, verifying = pair
    verifier = Verifier(PLACE, [verifying])
    stranger = signing_key(ed25519_pair()[0])
    assert verifier(Record(0), 0) == Refusal.UNSIGNED
    assert verifier(Record(0, headers=(("other", b"x"),)), 0) == Refusal.UNSIGNED
    assert verifier(Record(0, headers=(stranger.header(PLACE, 0, NOW, VALUE),)), 0) == Refusal.UNKNOWN_KEY


def test_a_key_does_not_answer_for_another_algorithm() -> None:
    signing, _ = PAIRS["hmac"]
    name, header = signing.header(PLACE, 0, NOW, VALUE)
    disguised = header.replace(b"hmac-sha256", b"ed25519")
    verifier = Verifier(PLACE, [verifying for _, verifying in PAIRS.values()])
    assert verifier(Record(0, headers=((name, disguised),)), 0) == Refusal.UNKNOWN_KEY


@pytest.mark.parametrize("length", [0, 32, 64])
def test_a_signature_of_another_length_is_bad(pair, length: int) -> None:
    signing, verifying = pair
    header = f"v2 {signing.name} 0 {NOW} {'00' * length}".encode()
    assert Verifier(PLACE, [verifying])(Record(0, headers=((HEADER, header),)), 0) == Refusal.BAD_SIGNATURE


def test_two_signatures_are_none(pair) -> None:
    signing, verifying = pair
    header = signing.header(PLACE, 0, NOW, VALUE)
    record = Record(0, headers=(header, header))
    assert Verifier(PLACE, [verifying])(record, 0) == Refusal.BAD_SIGNATURE


@given(st.binary(max_size=200))
def test_no_header_that_somebody_thinks_of_is_heard_or_raises(header: bytes) -> None:
    verifier = Verifier(PLACE, [verifying for _, verifying in PAIRS.values()])
    assert verifier(Record(0, headers=((HEADER, header),)), 0) in set(Refusal)


@given(st.data())
def test_no_change_of_one_byte_is_heard(data) -> None:
    signing, verifying = PAIRS["ed25519"]
    name, header = signing.header(PLACE, 7, NOW, VALUE)
    at = data.draw(st.integers(0, len(header) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != header[at]))
    changed = header[:at] + bytes([byte]) + header[at + 1 :]
    assert Verifier(PLACE, [verifying])(Record(7, headers=((name, changed),)), 0) in set(Refusal)


def test_an_offset_beyond_kafkas_is_bad_and_harmless(pair) -> None:
    signing, verifying = pair
    name, header = signing.header(PLACE, 0, NOW, VALUE)
    record = Record(0, headers=((name, header.replace(b" 0 ", b" 9999999999999999999 ")),))
    assert Verifier(PLACE, [verifying])(record, 0) == Refusal.BAD_SIGNATURE


# --- in the shard


def test_a_replay_is_refused_whoever_owns_the_shard_and_whatever_was_read_before() -> None:
    """Answers depend on the record alone: no takeover, at any offset, changes one."""
    signing, verifying = PAIRS["ed25519"]
    verifier = Verifier(PLACE, [verifying])
    header = signing.header(PLACE, 2, NOW, VALUE)
    log = [Record(0), Record(1, headers=(header,)), *(Record(at, headers=(header,)) for at in range(2, 9))]
    for start in range(len(log) + 1):
        controls = Controls(start, verify=verifier)
        controls.add(log)
        heard = [at for at, command in controls.due(replayed=True) if not isinstance(command, str)]
        assert heard == ([2] if start <= 2 else [])


def test_a_signature_is_looked_at_before_the_content() -> None:
    controls = Controls(0, verify=Verifier(PLACE, [PAIRS["hmac"][1]]))
    records = [Record(0, b"{"), Record(1, None), Record(2, b" " * (COMMAND_LIMIT + 1))]
    said = [(0, Refusal.UNSIGNED), (1, "command-empty"), (2, "command-too-large")]
    assert controls.add(records) == said
    signed = PAIRS["hmac"][0].header(PLACE, 3, NOW, b"{")
    assert controls.add([Record(3, b"{", (signed,))]) == [(3, "command-not-json")]


# --- keys


def test_a_key_shows_its_name_and_nothing_else() -> None:
    shown = repr(shared_key(SECRET))
    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown
    assert shown.count("hmac-sha256 ") == 2


def test_the_same_secret_always_has_the_same_name() -> None:
    assert shared_key(SECRET)[1].name == shared_key(SECRET)[0].name == signing_key(SECRET.hex()).name
    assert shared_key(SECRET)[1].name != shared_key(SECRET[::-1])[1].name


def _pem(key, *, public: bool) -> str:
    if public:
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


OTHER_KIND = ec.generate_private_key(ec.SECP256R1())
OTHER_SIZE = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ed25519_pair()[0], "holds a private key: workers need the public half only"),
        (_pem(OTHER_KIND, public=True), "another kind"),
        (_pem(OTHER_SIZE, public=True), "another kind"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "must hold an Ed25519 public key"),
        (SECRET.hex(), "must hold an Ed25519 public key"),
        ("", "must hold an Ed25519 public key"),
    ],
)
def test_what_is_no_public_key_is_refused_without_its_content(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        public_key(text)
    assert not text or text.splitlines()[-1] not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ed25519_pair()[1], "must hold an Ed25519 private key"),
        (ed25519_pair(b"password")[0], "holds an encrypted key"),
        (_pem(OTHER_KIND, public=False), "another kind"),
        (SECRET.hex()[2:], "or 32 bytes"),
        ("", "or 32 bytes"),
    ],
)
def test_what_is_no_signing_key_is_refused_without_its_content(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        signing_key(text)
    assert not text or text.splitlines()[-1] not in str(refusal.value)
