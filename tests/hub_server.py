"""A hub of our own: a real HTTP server that speaks the hub's resolve API, honestly or not."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class HubServer(ThreadingHTTPServer):
    """Serves ``files[repo_id][name]`` at ``refs[repo_id][revision]``; ``misbehave`` takes over a file's answer."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.misbehave: dict[str, Callable[[_Handler], None]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.release = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, repo_id: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        self.files[repo_id] = files
        self.refs.setdefault(repo_id, {})["main"] = commit

    def names(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for path, _ in self.requests]

    def handle_error(self, request, client_address) -> None:
        """Clients that give up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        owner, name, kind, revision, file_name = self.path[1:].split("/", 4)
        assert kind == "resolve"
        odd = self.server.misbehave.get(file_name)
        if odd is not None:
            odd(self)
            return
        repo_id, revision = f"{owner}/{name}", unquote(revision)
        if repo_id not in self.server.files:
            self.answer(401, {"X-Error-Code": "RepoNotFound"})
            return
        refs = self.server.refs[repo_id]
        commit = revision if revision in refs.values() else refs.get(revision)
        if commit is None:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
            return
        content = self.server.files[repo_id].get(file_name)
        if content is None:
            self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        self.answer(200, self.headers_of(content, commit), content)

    def headers_of(self, content: bytes, commit: str = COMMIT) -> dict[str, str]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return {"X-Repo-Commit": commit, "ETag": f'"{blob}"'}

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Quiet."""
