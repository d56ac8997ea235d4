"""An HTTP server in a thread: serves a folder, and says what it was asked. With a context, HTTPS."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Web:
    """`/echo` answers with the request as JSON; everything else is a file of the folder."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        web = self

        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_GET(self) -> None:
                self._note(b"")
                if self.path.startswith("/echo"):
                    self._echo()
                else:
                    super().do_GET()

            def do_POST(self) -> None:
                self._note(self.rfile.read(int(self.headers.get("content-length", 0))))
                self._echo()

            def _note(self, body: bytes) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                web.requests.append({"method": self.command, "path": self.path, "headers": headers, "body": body.decode()})

            def _echo(self) -> None:
                # Never the headers: what the host adds must not come back to the guest.
                content = json.dumps({"method": self.command, "path": self.path, "body": web.requests[-1]["body"]}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
