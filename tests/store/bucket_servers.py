"""Servers of buckets, and a way to them on which things go wrong."""

import contextlib
import http.client
import http.server
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

BUCKET = "bucket"
_LOGIN = "[{}]\naws_access_key_id = {}\naws_secret_access_key = secret\n"


@contextlib.contextmanager
def started(module, *arguments, **variables):
    """Host and port of a server that is a Python module; skips where it cannot be."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed; it comes with the extra 'test'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            module,
            *(port if a == "PORT" else a for a in arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
    )
    # Its log is read, so that it never waits for somebody to do so.
    log = []
    reader = threading.Thread(target=lambda: log.extend(server.stdout), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                break
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"{module} does not start: {b''.join(log[-3:])}")
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        reader.join()
        server.stdout.close()


def ask(host, method, path, body=None):
    """Status of the answer to one request."""
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request(method, path, body)
    status = connection.getresponse().status
    connection.close()
    return status


def login(folder, user="tester"):
    """Credentials in a file of their own, as TensorStore is given them."""
    folder.mkdir(exist_ok=True)
    (folder / "credentials").write_text(_LOGIN.format("default", user))
    (folder / "config").write_text("")
    return {
        "type": "profile",
        "profile": "default",
        "credentials_file": str(folder / "credentials"),
        "config_file": str(folder / "config"),
    }


class Way:
    """Leads to a server; what happens to each request is asked of ``trouble``.

    Attributes:
      url: where it begins.
      trouble: from method and path to what happens: ``""`` for nothing, a status and
        what S3 calls it, or a name that :class:`_Handler` knows.
      refusal: what an answer says that has a status alone.
      asked: of every request when it came, its method, path and headers.
      fail: what happens to the next requests, in order; then ``trouble`` is asked.
    """

    def __init__(self, host):
        self.host, self.trouble, self.asked, self.fail = host, lambda *_: "", [], []
        self.refusal = b""
        self._lock, self._healed = threading.Lock(), threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.way = self
        self._server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        serve = threading.Thread(target=self._server.serve_forever, args=[0.01])
        serve.daemon = True
        serve.start()

    def next(self, method, path, headers):
        with self._lock:
            self.asked.append((time.monotonic(), method, path, headers))
            return self.fail.pop(0) if self.fail else self.trouble(method, path)

    def hang(self):
        self._healed.wait(30)

    def close(self):
        self._healed.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection.

    ``lost``: the request does not arrive.  ``half sent``: half of its body does.
    ``unheard``: it is done, the answer is lost.  ``half``: half of the answer comes.
    ``short``: the same, and its length says no more.  ``hang``: no answer.
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one(self):
        way = self.server.way
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        trouble = way.next(self.command, self.path, self.headers)
        if trouble == "hang":
            way.hang()
        elif trouble == "half sent":
            with contextlib.suppress(OSError):
                self._forwarded(body[: len(body) // 2], len(body))
        elif trouble == "lost":
            pass
        elif trouble[:3].isdigit():
            status, _, code = trouble.partition(" ")
            said = f"<Error><Code>{code}</Code><Message>so</Message></Error>"
            said = said.encode() if code else way.refusal
            return self._answer(int(status), {}, said)
        else:
            status, headers, data = self._forwarded(body, len(body))
            if trouble in {"", "short"}:
                data = data[: len(data) // 2] if trouble else data
                return self._answer(status, headers, data)
            if trouble == "half":
                self._answer(status, headers, data[: len(data) // 2], len(data))
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return None

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one

    def _forwarded(self, body, length):
        connection = http.client.HTTPConnection(self.server.way.host, timeout=10)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"content-length", "connection", "expect"}
        }
        headers["Content-Length"] = str(length)
        connection.request(self.command, self.path, body, headers)
        if len(body) < length:
            connection.close()
            return None
        answer = connection.getresponse()
        data, found = answer.read(), dict(answer.getheaders())
        connection.close()
        return answer.status, found, data

    def _answer(self, status, headers, data, length=None):
        lines = [f"HTTP/1.1 {status} so"]
        kept = {"content-length", "transfer-encoding", "connection"}
        lines += [f"{n}: {v}" for n, v in headers.items() if n.lower() not in kept]
        size = len(data) if length is None else length
        if self.command == "HEAD":
            size = headers.get("Content-Length", 0)
        lines += [f"Content-Length: {size}", "", ""]
        # All at once: two small writes wait for each other.
        self.connection.sendall("\r\n".join(lines).encode() + data)
