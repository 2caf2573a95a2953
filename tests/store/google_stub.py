"""A stub of Google's object storage, after its published JSON API; lists in pages."""

import http.server
import json
import re
import threading
import urllib.parse

PAGE = 3
_PATH = re.compile(r"(?:/upload)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?")


class GoogleStub:
    """One bucket, in memory.

    Attributes:
      objects: data by name.
      host: and port.
    """

    def __init__(self, bucket):
        self.bucket, self.objects = bucket, {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.stub = self
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        serve = threading.Thread(target=self._server.serve_forever, args=[0.01])
        serve.daemon = True
        serve.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def handle_one(self):
        stub = self.server.stub
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        found = _PATH.fullmatch(url.path)
        if not self.headers.get("authorization"):
            return self._say(401)
        if not found or found[1] != stub.bucket:
            return self._say(404)
        name = urllib.parse.unquote(found[2] or query.get("name", ""))
        if self.command == "POST":
            if len(body) < int(self.headers["content-length"]):
                return self._say(400)
            stub.objects[name] = body
        elif not name:
            return self._list(stub, query)
        if name not in stub.objects:
            return self._say(404)
        if self.command == "DELETE":
            del stub.objects[name]
            return self._say(204)
        if query.get("alt") == "media":
            return self._media(stub.objects[name])
        return self._say(200, json.dumps(_about(stub, name)).encode())

    do_GET = do_POST = do_DELETE = handle_one

    def _list(self, stub, query):
        first = query.get("startOffset", "")
        end = query.get("endOffset", "\U0010ffff")
        names = sorted(n for n in list(stub.objects) if first <= n < end)
        start = int(query.get("pageToken", 0))
        page = names[start : start + PAGE]
        said = {"kind": "storage#objects", "items": [_about(stub, n) for n in page]}
        if names[start + PAGE :]:
            said["nextPageToken"] = str(start + PAGE)
        self._say(200, json.dumps(said).encode())

    def _media(self, data):
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if not span:
            return self._say(200, data)
        start, last = int(span[1]), int(span[2] or len(data)) + 1
        part = data[start:last]
        if not part:
            return self._say(416)
        shown = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        return self._say(206, part, ("Content-Range", shown))

    def _say(self, status, data=b"", *headers):
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", len(data))):
            self.send_header(name, value)
        self.send_header("x-goog-generation", "7")
        self.end_headers()
        self.wfile.write(data)


def _about(stub, name):
    size = len(stub.objects.get(name, b""))
    return {"name": name, "bucket": stub.bucket, "size": f"{size}", "generation": "7"}
