"""A hub of models on 127.0.0.1 that speaks the part of the Hugging Face Hub's API that pushing and loading need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_secretofthetests"
LARGE = (".safetensors", ".bin", ".png")  # what the Hub keeps as large files
#: Step → method and path; the groups are the repository, and a revision, path or object.
ROUTES = {
    "create": r"POST /api/repos/create",
    "validate": r"POST /api/validate-yaml",
    "preupload": r"POST /api/models/(\w+/[\w.-]+)/preupload/([^/]+)",
    "batch": r"POST /(\w+/[\w.-]+)\.git/info/lfs/objects/batch",
    "upload": r"PUT /objects/(\w+)/?(\d*)",
    "complete": r"POST /objects/(\w+)",
    "commit": r"POST /api/models/(\w+/[\w.-]+)/commit/([^/]+)",
    "branch": r"POST /api/models/(\w+/[\w.-]+)/branch/([^/]+)",
    "info": r"GET /api/models/(\w+/[\w.-]+)(?:/revision/([^/]+))?",
    "tree": r"GET /api/models/(\w+/[\w.-]+)/tree/([^/]+)(?:/(.+))?",
    "resolve": r"(?:GET|HEAD) /(\w+/[\w.-]+)/resolve/([^/]+)/(.+)",
    "object": r"(?:GET|HEAD) /objects/(\w+)",
}
STORAGE = ("upload", "complete", "object")
FIRST = "0" * 40  # the commit of an empty repository
WRITES = ("create", "validate", "preupload", "batch", "commit", "branch")


@dataclass
class Repository:
    """Commits are maps from path to the name of an object; refs point to them."""

    private: bool = False
    refs: dict[str, str] = field(default_factory=lambda: {"main": FIRST})
    commits: dict[str, dict[str, str]] = field(default_factory=lambda: {FIRST: {}})
    messages: list[str] = field(default_factory=list)


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class FakeHub(ThreadingHTTPServer):
    """Serves while the ``with`` block runs.

    Attributes:
        repositories: Name → repository.
        objects: SHA-256 → content of a file.
        faults: Step → what it answers from now on: an HTTP status, or "cut" to drop the connection halfway.
        once: Steps of which the fault passes after one answer.
        chunk_size: Size of the parts of a large file. None: in one piece.
        large: Endings of the names of large files.
        steps: The steps that were asked for, in order.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.storage = f"http://localhost:{self.server_port}/objects"  # another host, as with the Hub
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.faults: dict[str, int | str] = {}
        self.once: set[str] = set()
        self.chunk_size: int | None = None
        self.large: tuple[str, ...] = LARGE
        self.steps: list[str] = []
        self.lock = threading.Lock()

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """Path → content."""
        repository = self.repositories[name]
        commit = repository.commits[repository.refs.get(revision, revision)]
        return {path: self.objects[key] for path, key in commit.items()}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"
    timeout = 20

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        for step, pattern in ROUTES.items():
            # Quoted slashes of a revision, such as refs/pr/1, stay within their part of the path.
            if match := re.fullmatch(pattern, f"{self.command} {urlsplit(self.path).path}"):
                return self._serve(step, [unquote(part or "") for part in match.groups()])
        self._read_body()
        self._fail(Refused(404, f"Nothing at {path}", "RepoNotFound"))

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _serve(self, step: str, parts: list[str]) -> None:
        hub = self.server
        fault = hub.faults.get(step)
        if step in hub.once:
            hub.faults.pop(step, None)
        if fault == "cut":
            hub.steps.append(step)
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        body = self._read_body()
        with hub.lock:
            hub.steps.append(step)
            try:
                if isinstance(fault, int):
                    message = "Invalid credentials in Authorization header" if fault == 401 else f"fault at {step}"
                    raise Refused(fault, message)
                if step in STORAGE and "Authorization" in self.headers:
                    raise Refused(400, "the token was sent to another host")
                if step in WRITES and not self._trusted():
                    raise Refused(401, "Invalid credentials in Authorization header")
                getattr(self, f"_{step}")(body, *parts)
            except Refused as refused:
                self._fail(refused)

    def _trusted(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _fail(self, refused: Refused) -> None:
        headers = {"X-Error-Message": str(refused), **({"X-Error-Code": refused.code} if refused.code else {})}
        self._answer(json.dumps({"error": str(refused)}).encode(), refused.status, headers)

    def _json(self, content: Any, status: int = 200) -> None:
        self._answer(json.dumps(content).encode(), status)

    def _answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _repository(self, name: str) -> Repository:
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not self._trusted()):
            raise Refused(404 if self._trusted() else 401, "Repository not found", "RepoNotFound")
        return repository

    def _tree_at(self, name: str, revision: str) -> tuple[str, dict[str, str]]:
        repository = self._repository(name)
        commit = repository.refs.get(revision or "main", revision)
        if commit not in repository.commits:
            raise Refused(404, f"No revision {revision}", "RevisionNotFound")
        return commit, repository.commits[commit]

    # Each step gets its body, and then the groups of its route.

    def _create(self, body: bytes) -> None:
        wanted = json.loads(body)
        name = f"{wanted['organization'] or 'owner'}/{wanted['name']}"
        known = name in self.server.repositories
        if not known:
            self.server.repositories[name] = Repository(wanted.get("visibility") == "private")
        self._json({"url": f"{self.server.endpoint}/{name}"}, 409 if known else 200)

    def _validate(self, body: bytes) -> None:
        metadata = json.loads(body)["content"].startswith("---\n")
        self._json({"errors": [], "warnings": [] if metadata else [{"message": "empty or missing metadata"}]})

    def _preupload(self, body: bytes, name: str, revision: str) -> None:
        _, tree = self._tree_at(name, revision)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(self.server.large) else "regular",
                "shouldIgnore": False,
                "oid": self._oid(file["path"], tree),
            }
            for file in json.loads(body)["files"]
        ]
        self._json({"files": files})

    def _oid(self, path: str, tree: dict[str, str]) -> str | None:
        if path not in tree or path.endswith(self.server.large):
            return tree.get(path)
        content = self.server.objects[tree[path]]
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def _batch(self, body: bytes, name: str) -> None:
        self._repository(name)
        objects = json.loads(body)["objects"]
        for item in objects:
            url = f"{self.server.storage}/{item['oid']}"
            if item["oid"] not in self.server.objects:
                header = {}
                if size := self.server.chunk_size:
                    header = {str(i + 1): f"{url}/{i + 1}" for i in range(-(-item["size"] // size))}
                    header["chunk_size"] = str(size)
                item["actions"] = {"upload": {"href": url, "header": header}}
        self._json({"transfer": "multipart" if self.server.chunk_size else "basic", "objects": objects})

    def _upload(self, body: bytes, oid: str, part: str) -> None:
        if part:
            self.server.parts[oid, int(part)] = body
        else:
            self._keep(body, oid)
        self._answer(b"", headers={"ETag": f'"{hashlib.sha256(body).hexdigest()}"'})

    def _complete(self, body: bytes, oid: str) -> None:
        parts = [self.server.parts[oid, part["partNumber"]] for part in json.loads(body)["parts"]]
        self._keep(b"".join(parts), oid)
        self._json({})

    def _keep(self, content: bytes, oid: str | None = None) -> str:
        found = hashlib.sha256(content).hexdigest()
        if oid not in (None, found):
            raise Refused(400, "the content is not what was announced")
        self.server.objects[found] = content
        return found

    def _commit(self, body: bytes, name: str, revision: str) -> None:
        repository = self._repository(name)
        _, tree = self._tree_at(name, revision)
        tree = dict(tree)
        header, *operations = [json.loads(line) for line in body.splitlines()]
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                tree[value["path"]] = self._keep(base64.b64decode(value["content"]))
            elif operation["key"] == "lfsFile" and value["oid"] in self.server.objects:
                tree[value["path"]] = value["oid"]
            else:
                raise Refused(400, f"{operation['key']} {value['path']} is not known, or was not uploaded")
        commit = secrets.token_hex(20)
        pull_request = "create_pr" in parse_qs(urlsplit(self.path).query)
        number = 1 + sum(ref.startswith("refs/pr/") for ref in repository.refs)
        repository.commits[commit] = tree
        repository.refs[f"refs/pr/{number}" if pull_request else revision] = commit
        repository.messages.append(header["value"]["summary"])
        url = f"{self.server.endpoint}/{name}"
        answer = {"commitUrl": f"{url}/commit/{commit}", "commitOid": commit}
        self._json({**answer, **({"pullRequestUrl": f"{url}/discussions/{number}"} if pull_request else {})})

    def _branch(self, body: bytes, name: str, branch: str) -> None:
        refs = self._repository(name).refs
        known = branch in refs
        refs.setdefault(branch, refs["main"])
        self._json({}, 409 if known else 200)

    def _info(self, body: bytes, name: str, revision: str) -> None:
        commit, tree = self._tree_at(name, revision)
        private = self._repository(name).private
        siblings = [{"rfilename": path} for path in tree]
        self._json({"id": name, "sha": commit, "private": private, "tags": [], "siblings": siblings})

    def _tree(self, body: bytes, name: str, revision: str, folder: str) -> None:
        _, tree = self._tree_at(name, revision)
        inside = {path: key for path, key in tree.items() if path.startswith(f"{folder}/" if folder else "")}
        if folder and not inside:
            raise Refused(404, f"No folder {folder}", "EntryNotFound")
        files = [
            {"type": "file", "path": path, "oid": self._oid(path, tree), "size": len(self.server.objects[key])}
            for path, key in inside.items()
        ]
        self._json(files)

    def _resolve(self, body: bytes, name: str, revision: str, path: str) -> None:
        commit, tree = self._tree_at(name, revision)
        if path not in tree:
            raise Refused(404, f"No file {path}", "EntryNotFound")
        content = self.server.objects[tree[path]]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{self._oid(path, tree)}"'}
        if not path.endswith(self.server.large):
            return self._answer(content, headers=headers)
        headers |= {"X-Linked-Etag": f'"{tree[path]}"', "X-Linked-Size": str(len(content))}
        return self._answer(b"", 302, {**headers, "Location": f"{self.server.storage}/{tree[path]}"})

    def _object(self, body: bytes, oid: str) -> None:
        if oid not in self.server.objects:
            raise Refused(404, f"No object {oid}", "EntryNotFound")
        self._answer(self.server.objects[oid], headers={"ETag": f'"{oid}"'})
