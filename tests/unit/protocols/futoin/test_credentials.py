"""FTN8: the forms of `sec`, signatures both ways, and that nobody learns what was wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.futoin_peer import MASTER_ID, MASTER_KEY

from headrace.protocols.futoin import codec, credentials, mac
from headrace.protocols.futoin.client import MasterSigner
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.credentials import MasterSigned, Signed, parse
from headrace.protocols.futoin.errors import PeerError
from headrace.protocols.futoin.settings import Futoin, MasterKey
from headrace.security.admission import Password

MAC_KEY = b"MyLongTestSecretKey-0123456789"
PING: dict[str, Any] = {"f": "futoin.evt.gen:1.1:ping", "p": {"echo": 5}}


class TestForms:
    @pytest.mark.parametrize(
        ("sec", "claim"),
        [
            (None, None),
            ("", None),
            ("user:secret", Password("user", "secret")),
            ("user:with:colons", Password("user", "with:colons")),
            ("user:", Password("user", "")),
            ({"user": "u", "secret": "s"}, Password("u", "s")),
            ("-hmac:u:MD5:x", Signed("u", "md5", "x", credentials.LEGACY_FAILED)),
            ("-smac:u:HS512:x", Signed("u", "sha512", "x", credentials.STATELESS_FAILED)),
            (
                "-mmac:m:HS512:HKDF512:20260101:x",
                MasterSigned("m", "sha512", "sha512", "20260101", "x", credentials.MASTER_FAILED),
            ),
            ("-mmac:m:HMD5:HKDF256::x", MasterSigned("m", "md5", "sha256", "", "x", credentials.MASTER_FAILED)),
            (
                {"msid": "m", "algo": "HS256", "kds": "HKDF256", "prm": "p", "sig": "x"},
                MasterSigned("m", "sha256", "sha256", "p", "x", credentials.MASTER_FAILED),
            ),
            (
                {"msid": "m", "algo": "HS256", "kds": "HKDF256", "sig": "x"},
                MasterSigned("m", "sha256", "sha256", "", "x", credentials.MASTER_FAILED),
            ),
            ({"user": "u", "algo": "SHA256", "sig": "x"}, Signed("u", "sha256", "x", credentials.LEGACY_FAILED)),
            ({"user": "u", "algo": "HS256", "sig": "x"}, Signed("u", "sha256", "x", credentials.STATELESS_FAILED)),
        ],
    )
    def test_understood(self, sec: Any, claim: Any) -> None:
        assert parse(sec) == claim

    @pytest.mark.parametrize(
        ("sec", "name"),
        [
            ("nocolon", "SecurityError"),
            ("-internal", "SecurityError"),
            ("-mmac:a:b:c:d:e", "InvalidRequest"),
            ("-mmac:a:HS256:HKDF256:d", "SecurityError"),
            ("-mmac:a:HS256:HKDF1:d:e", "SecurityError"),
            ("-mmac:a:KMAC256:HKDF256:d:e", "InvalidRequest"),
            ("-mmac:a:SHA256:HKDF256:d:e", "InvalidRequest"),
            ("-mmac:a:HS256:HKDF256:a b:e", "SecurityError"),
            (f"-mmac:a:HS256:HKDF256:{'d' * 33}:e", "SecurityError"),
            ("-", "NotImplemented"),
            ("-hmac:u", "SecurityError"),
            ("-smac:u:HS256", "SecurityError"),
            ("-hmac:u:HS256:x", "InvalidRequest"),
            ("-smac:u:KMAC128:x", "InvalidRequest"),
            ({"user": "u"}, "NotImplemented"),
            ({"user": "u", "secret": 5}, "SecurityError"),
            ({"msid": "a", "algo": "b", "kds": "c", "prm": "d", "sig": "e"}, "InvalidRequest"),
            ({"msid": "a", "algo": "HS256", "prm": "d", "sig": "e"}, "NotImplemented"),
            ({"msid": "a", "algo": "HS256", "kds": "HKDF256", "prm": None, "sig": "e"}, "SecurityError"),
        ],
    )
    def test_refused(self, sec: Any, name: str) -> None:
        with pytest.raises(PeerError) as caught:
            parse(sec)
        assert caught.value.name == name

    def test_basic_header(self) -> None:
        assert credentials.from_basic("Basic dTpz") == "u:s"
        assert credentials.from_basic("Bearer x") is None
        with pytest.raises(PeerError):
            parse(credentials.from_basic("Basic !"))


async def exchange(asgi: Any, message: dict[str, Any], coding: Coding = Coding.JSON) -> dict[str, Any]:
    _, _, body = await asgi.http(codec.encode_object(message, coding))
    found: dict[str, Any] = codec.decode_object(body, coding)
    return found


def signed(message: dict[str, Any], form: str = "-smac", name: str = "HS256", user: str = "macuser") -> dict[str, Any]:
    algorithm = {**mac.HMAC_ALGORITHMS, **mac.SMAC_ALGORITHMS}[name]
    return {**message, "sec": f"{form}:{user}:{name}:{mac.sign(MAC_KEY, algorithm, message)}"}


class TestPasswords:
    async def test_wrong_name_and_wrong_secret_look_alike(self, asgi: Any) -> None:
        wrong = [{**PING, "sec": sec} for sec in ("evtuser:no", "nobody:evtpass", {"user": "evtuser", "secret": "no"})]
        replies = [await exchange(asgi, message) for message in wrong]
        assert replies == [{"e": "SecurityError", "edesc": "Basic Auth Verification Failed"}] * 3

    async def test_secret_with_colons(self, asgi: Any) -> None:
        assert await exchange(asgi, {**PING, "sec": "other:other:pass"}) == {"r": {"echo": 5}}

    async def test_wrong_secret_wins_over_a_bad_request(self, asgi: Any) -> None:
        reply = await exchange(asgi, {"f": "nonsense", "p": 5, "sec": "evtuser:no"})
        assert reply["e"] == "SecurityError"

    async def test_remembered_only_for_a_moment(self, asgi: Any, monkeypatch: Any) -> None:
        now = [1000.0]
        monkeypatch.setattr(credentials.time, "monotonic", lambda: now[0])
        asked: list[str] = []
        check = asgi.hub.admission.admit

        async def counted(listener: str, peer: str, credential: Any, told: str) -> Any:
            asked.append(credential.user)
            return await check(listener, peer, credential, told)

        monkeypatch.setattr(asgi.hub.admission, "admit", counted)
        for _ in range(3):
            await exchange(asgi, {**PING, "sec": "evtuser:evtpass"})
        assert asked == ["evtuser"]
        now[0] += credentials.KNOWN_FOR_S + 0.1
        await exchange(asgi, {**PING, "sec": "evtuser:evtpass"})
        assert asked == ["evtuser", "evtuser"]

    async def test_memory_of_callers_is_bounded(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(credentials, "KNOWN_MAX", 1)
        for sec in ("evtuser:evtpass", "other:other:pass", "evtuser:evtpass"):
            assert await exchange(asgi, {**PING, "sec": sec}) == {"r": {"echo": 5}}

    async def test_refused_logins_are_counted(self, asgi: Any) -> None:
        await exchange(asgi, {**PING, "sec": "evtuser:no"})
        await exchange(asgi, {**PING, "sec": "-hmac:macuser:MD5:AAAA"})
        assert asgi.hub.metrics.protocol.refused_logins.labels(protocol="futoin")._value.get() == 2


class TestSignatures:
    @pytest.mark.parametrize(
        ("form", "name"),
        [("-hmac", name) for name in mac.HMAC_ALGORITHMS] + [("-smac", name) for name in mac.SMAC_ALGORITHMS],
    )
    async def test_request_and_reply(self, asgi: Any, form: str, name: str) -> None:
        reply = await exchange(asgi, signed({**PING, "rid": "C1"}, form, name))
        algorithm = {**mac.HMAC_ALGORITHMS, **mac.SMAC_ALGORITHMS}[name]
        assert reply["r"] == {"echo": 5}
        assert mac.verify(MAC_KEY, algorithm, reply, reply["sec"])

    async def test_object_form(self, asgi: Any) -> None:
        sec = {"user": "macuser", "algo": "HS256", "sig": mac.sign(MAC_KEY, "sha256", PING)}
        assert (await exchange(asgi, {**PING, "sec": sec}))["r"] == {"echo": 5}

    @pytest.mark.parametrize("coding", list(Coding))
    async def test_every_coding(self, asgi: Any, coding: Coding) -> None:
        message = {"f": "futoin.evt.gen:1.1:addEvent", "p": {"type": "S", "data": {"x": [1.5, 3.0, None, "é"]}}}
        reply = await exchange(asgi, signed(message), coding)
        assert reply["r"] == "1"
        assert mac.verify(MAC_KEY, "sha256", reply, reply["sec"])
        reply = await exchange(
            asgi, signed({"f": "futoin.evt.poll:1.1:pollEvents", "p": {"component": "LIVE"}}), coding
        )
        assert reply["r"][0]["data"] == {"x": [1.5, 3.0, None, "é"]}
        assert mac.verify(MAC_KEY, "sha256", reply, reply["sec"])

    async def test_errors_are_signed_too(self, asgi: Any) -> None:
        for message in (
            {"f": "no:1.0:x", "p": {}},
            {"f": "futoin.evt.poll:1.1:pollEvents", "p": {"component": "C"}, "rid": "C4"},
        ):
            reply = await exchange(asgi, signed(message))
            assert "e" in reply
            assert mac.verify(MAC_KEY, "sha256", reply, reply["sec"])

    @pytest.mark.parametrize("change", [{"rid": "C2"}, {"p": {"echo": 6}}, {"forcersp": True}])
    async def test_changed_message(self, asgi: Any, change: dict[str, Any]) -> None:
        reply = await exchange(asgi, {**signed(PING), **change})
        assert reply == {"e": "SecurityError", "edesc": "Stateless MAC Verification Failed"} | (
            {"rid": "C2"} if "rid" in change else {}
        )

    @pytest.mark.parametrize("user", ["evtuser", "nobody", "ghost"])
    async def test_users_without_a_key(self, asgi: Any, user: str) -> None:
        assert (await exchange(asgi, signed(PING, user=user)))["e"] == "SecurityError"

    async def test_key_without_a_user(self, asgi: Any) -> None:
        message = {**PING, "sec": f"-smac:ghost:HS256:{mac.sign(b'ghost', 'sha256', PING)}"}
        assert (await exchange(asgi, message))["e"] == "SecurityError"

    async def test_signed_add_over_websocket(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            message = {"f": "futoin.evt.gen:1.1:addEvent", "p": {"type": "S", "data": 1}, "rid": "C1"}
            peer.send(signed(message))
            reply = await peer.next()
            assert (reply["r"], reply["rid"]) == ("1", "C1")
            assert mac.verify(MAC_KEY, "sha256", reply, reply["sec"])

    async def test_nested_too_deep_to_sign(self, asgi: Any) -> None:
        deep = b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"A","data":' + b"[" * 800 + b"]" * 800 + b"},"
        _, _, body = await asgi.http(deep + b'"sec":"-smac:macuser:HS256:AAAA"}')
        assert json.loads(body)["e"] in ("InvalidRequest", "SecurityError")


MASTER = MasterSigner(MASTER_ID, MASTER_KEY, "hub.example", "20260101")


class TestMasterSecrets:
    """FTN8.2: keys made from a Master Secret, for this hub alone."""

    @pytest.mark.parametrize("strategy", mac.KEY_STRATEGIES)
    @pytest.mark.parametrize("algorithm", mac.SMAC_ALGORITHMS)
    async def test_request_and_reply(self, asgi: Any, algorithm: str, strategy: str) -> None:
        for parameter in ("20260101", ""):
            signer = MASTER._replace(algorithm=algorithm, strategy=strategy, parameter=parameter)
            message = {**PING, "rid": "C1"}
            reply = await exchange(asgi, {**message, "sec": signer.sec(message)})
            assert reply["r"] == {"echo": 5}
            assert signer.is_genuine(reply)

    async def test_object_forms(self, asgi: Any) -> None:
        for parameter in ({"prm": "20260101"}, {}):
            signer = MASTER._replace(parameter=parameter.get("prm", ""))
            signature = signer.sec(PING).rpartition(":")[2]
            sec = {"msid": MASTER_ID, "algo": "HS256", "kds": "HKDF256", "sig": signature, **parameter}
            assert (await exchange(asgi, {**PING, "sec": sec}))["r"] == {"echo": 5}

    async def test_rights_are_those_of_its_user(self, asgi: Any) -> None:
        signer = MASTER._replace(id="of-adder")
        add = {"f": "futoin.evt.gen:1.1:addEvent", "p": {"type": "S", "data": 1}}
        assert (await exchange(asgi, {**add, "sec": signer.sec(add)}))["r"] == "1"
        poll = {"f": "futoin.evt.poll:1.1:pollEvents", "p": {"component": "LIVE"}}
        reply = await exchange(asgi, {**poll, "sec": signer.sec(poll)})
        assert reply["e"] == "Unauthorized"
        assert signer.is_genuine(reply)

    @pytest.mark.parametrize(
        "other",
        [
            {"global_id": "other.example"},
            {"key": MASTER_KEY[:-1]},
            {"id": "nobody"},
            {"id": "of-ghost"},
            {"id": ""},
        ],
        ids=str,
    )
    async def test_other_secrets_and_keys_for_others(self, asgi: Any, other: dict[str, Any]) -> None:
        reply = await exchange(asgi, {**PING, "sec": MASTER._replace(**other).sec(PING)})
        assert reply == {"e": "SecurityError", "edesc": "Master MAC Verification Failed"}

    async def test_changed_messages(self, asgi: Any) -> None:
        for change in ({"p": {"echo": 6}}, {"rid": "C9"}):
            reply = await exchange(asgi, {**PING, "sec": MASTER.sec(PING), **change})
            assert reply["edesc"] == "Master MAC Verification Failed"

    async def test_the_secret_itself_signs_nothing(self, asgi: Any) -> None:
        signature = mac.sign(MASTER_KEY, "sha256", PING)
        for sec in (f"-mmac:{MASTER_ID}:HS256:HKDF256:20260101:{signature}", f"-smac:{MASTER_ID}:HS256:{signature}"):
            assert (await exchange(asgi, {**PING, "sec": sec}))["e"] == "SecurityError"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"mac_keys": {"u": "no base64!"}}, "`futoin.mac_keys.u` is not base64"),
        ({"mac_keys": {"u": "YWI"}}, "`futoin.mac_keys.u` is not base64"),
        ({"mac_keys": {"u": ""}}, "`futoin.mac_keys.u` has 0 bytes"),
        ({"master_keys": {"m": MasterKey(user="u", key="YWJj")}}, "`futoin.master_keys.m.key` has 3 bytes"),
        ({"master_keys": {"m": MasterKey(user="u", key="YWJj" * 400)}}, "at least 16 and at most 1024"),
        ({"global_id": "", "master_keys": {"m": MasterKey(user="u", key="YWJj" * 8)}}, "needs `futoin.global_id`"),
    ],
)
def test_keys_that_cannot_be_used_are_named_at_the_start(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        Futoin(**{"global_id": "hub", **wrong})


class TestGuessing:
    """The limit of the whole hub, in FutoIn's words."""

    async def test_passwords(self, asgi: Any) -> None:
        for number in range(10):
            await exchange(asgi, {**PING, "sec": f"evtuser:guess-{number}"})
        reply = await exchange(asgi, {**PING, "sec": "evtuser:evtpass"})
        assert reply["e"] == "SecurityError"
        assert reply["edesc"].startswith("too many failed logins from your address; try again in ")

    async def test_signatures(self, asgi: Any) -> None:
        for _ in range(30):  # good ones do not count
            assert "r" in await exchange(asgi, signed(PING))
        for _ in range(10):
            assert "Verification Failed" in (await exchange(asgi, {**signed(PING), "rid": "C2"}))["edesc"]
        assert (await exchange(asgi, signed(PING)))["edesc"].startswith("too many failed logins")
