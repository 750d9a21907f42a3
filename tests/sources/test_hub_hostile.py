"""A hub that stalls, drips, lies or runs in circles: each load ends in time, with the right code."""

from __future__ import annotations

import asyncio
import socket

import pytest

from app.sources import HubEnvironment, SourceError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HEAD = f'HTTP/1.1 200 OK\r\nX-Repo-Commit: {COMMIT}\r\nETag: "abc"\r\n'


def _stall(handler) -> None:
    handler.server.release.wait(60)


def _stall_after_headers(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: 10\r\n\r\n".encode())
    handler.server.release.wait(60)


def _drip(handler, text: bytes) -> None:
    """Each byte comes well before any per-read time-out."""
    for byte in text:
        if handler.server.release.wait(0.05):
            return
        handler.wfile.write(bytes([byte]))


def _drip_headers(handler) -> None:
    _drip(handler, HEAD.encode() + b"X-Padding: " + b"x" * 10_000)


def _drip_body(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
    _drip(handler, b'{"a": "' + b"x" * 10_000)


def _close(handler) -> None:
    handler.close_connection = True


def _reset(handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    handler.connection.close()
    handler.close_connection = True


def _truncate(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: 100\r\n\r\n{{}}".encode())
    handler.close_connection = True


def _truncate_chunks(handler) -> None:
    handler.wfile.write(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n".encode())
    handler.close_connection = True


def _lie_about_the_linked_size(handler) -> None:
    handler.answer(200, {"X-Repo-Commit": COMMIT, "ETag": "abc", "X-Linked-Size": "3"}, b"{}")


def _say_too_little(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: 5\r\n\r\n".encode() + b'{"a": 1}')
    handler.close_connection = True


def _announce_too_much(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: 99999999999\r\n\r\n".encode())
    handler.server.release.wait(60)


def _announce_too_much_elsewhere(handler) -> None:
    handler.wfile.write(f"{HEAD}X-Linked-Size: 99999999999\r\nContent-Length: 2\r\n\r\n{{}}".encode())


def _send_without_end(handler) -> None:
    handler.wfile.write(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    while not handler.server.release.is_set():
        handler.wfile.write(chunk)


def _send_headers_without_end(handler) -> None:
    handler.wfile.write(HEAD.encode())
    while not handler.server.release.is_set():
        handler.wfile.write(b"X-Padding: " + b"x" * 1000 + b"\r\n")


def _redirect_to(location: str):
    return lambda handler: handler.answer(302, {"Location": location})


def _no_http(handler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    handler.close_connection = True


def _bad_length(handler) -> None:
    handler.wfile.write(f"{HEAD}Content-Length: many\r\n\r\n{{}}".encode())
    handler.close_connection = True


@pytest.mark.parametrize(
    ("misbehave", "code"),
    [
        (_stall, "hub_timeout"),
        (_stall_after_headers, "hub_timeout"),
        (_drip_headers, "hub_timeout"),
        (_drip_body, "hub_timeout"),
        (_close, "hub_unreachable"),
        (_reset, "hub_unreachable"),
        (_truncate, "hub_unreachable"),
        (_truncate_chunks, "hub_unreachable"),
        (_lie_about_the_linked_size, "hub_unreachable"),
        (_say_too_little, "config_invalid"),
        (_announce_too_much, "config_invalid"),
        (_announce_too_much_elsewhere, "config_invalid"),
        (_send_without_end, "config_invalid"),
        (_send_headers_without_end, "hub_unreachable"),
        (_redirect_to("/org/name/resolve/main/config.json"), "hub_unreachable"),
        (_redirect_to("file:///etc/passwd"), "hub_unreachable"),
        (_redirect_to("ftp://localhost/x"), "hub_unreachable"),
        (_redirect_to("http://[::"), "hub_unreachable"),
        (_redirect_to("http://host:99999/x"), "hub_unreachable"),
        (_redirect_to("http://localhost:1/x"), "hub_unreachable"),
        (_no_http, "hub_unreachable"),
        (_bad_length, "hub_unreachable"),
    ],
)
@pytest.mark.timeout(30)
def test_a_hostile_hub(hub, make_sources, environment, misbehave, code) -> None:
    stalls = code == "hub_timeout"
    hub.misbehave["config.json"] = misbehave
    sources = make_sources(
        environment, hub="on", hub_timeout_s=0.7 if stalls else 25.0, max_file_bytes=1 << 20
    )
    with pytest.raises(SourceError) as caught:
        asyncio.run(sources.load("org/name"))
    assert caught.value.code == code
    assert "127.0.0.1" not in caught.value.detail
    if stalls:
        assert caught.value.retry_after_s is not None


def test_the_next_load_is_fine(hub, make_sources, environment) -> None:
    hub.misbehave["config.json"] = _stall
    hub.add("org/name", {"config.json": b'{"a": 1}'})
    sources = make_sources(
        environment, hub="on", hub_timeout_s=5.0, hub_concurrency=1, hub_error_recheck_s=0.0
    )

    async def twice():
        impatient = make_sources(environment, hub="on", hub_timeout_s=0.5)
        with pytest.raises(SourceError):
            await impatient.load("org/name")
        hub.misbehave.clear()
        return await sources.load("org/name")

    assert asyncio.run(twice()).config == {"a": 1}


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://x", "http://name.invalid"]
)
def test_no_hub_there(make_sources, tmp_path, endpoint) -> None:
    environment = HubEnvironment(endpoint=endpoint, cache_dir=tmp_path, offline=False)
    with pytest.raises(SourceError) as caught:
        make_sources(environment, hub="on").load_sync("org/name")
    assert caught.value.code in ("hub_unreachable", "hub_timeout")


def test_a_waiting_load_times_out_too(hub, make_sources, environment) -> None:
    hub.misbehave["config.json"] = _stall
    sources = make_sources(environment, hub="on", hub_timeout_s=0.7, hub_concurrency=1)

    async def many():
        return await asyncio.gather(*(sources.load(f"org/name{i}") for i in range(4)), return_exceptions=True)

    assert [error.code for error in asyncio.run(many())] == ["hub_timeout"] * 4
