"""A web server of this machine that serves a folder, well or badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(SimpleHTTPRequestHandler):
    """Serves files with or without their lengths, versions and parts."""

    has_lengths = has_parts = has_versions = True

    def log_message(self, *args: object) -> None:
        """Nothing is told."""

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length" and not self.has_lengths:
            return
        if keyword == "Last-Modified" and not self.has_versions:
            return
        super().send_header(keyword, value)

    def do_GET(self) -> None:
        path, wanted = Path(self.translate_path(self.path)), self.headers.get("Range")
        if not (self.has_parts and wanted and path.is_file()):
            super().do_GET()
            return
        data = path.read_bytes()
        first, last = wanted.removeprefix("bytes=").split("-")
        start = int(first) if first else len(data) - int(last)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(data[start:stop])


@contextmanager
def served(folder: Path, lengths: bool = True, parts: bool = True, versions: bool = True) -> Iterator[str]:
    """URL of a folder; without ``lengths`` no Content-Length is told, without ``parts`` files are sent whole."""
    facts = {"has_lengths": lengths, "has_parts": parts, "has_versions": versions}
    handler = partial(type("Handler", (_Handler,), facts), directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
