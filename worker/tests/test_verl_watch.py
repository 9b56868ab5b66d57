"""Updates of verl's rollout servers that do not end are reported."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hone_verl import watch


@pytest.fixture
def server(monkeypatch) -> Iterator[HTTPServer]:
    monkeypatch.setattr(watch, "_CHECK_SECONDS", 0.05)

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def reported(server: HTTPServer, limit: float, wait: float) -> str | None:
    """The first report within `wait` seconds of an update that does not end before it."""
    reports: list[str] = []
    came = threading.Event()

    def report(text: str) -> None:
        reports.append(text)
        came.set()

    with watch.watched([f"127.0.0.1:{server.server_port}"], (500, 503), 3, limit, report):
        came.wait(wait)
    return reports[0] if reports else None


def test_a_server_that_answers_is_not_reported_before_the_limit(server):
    assert reported(server, limit=600, wait=0.5) is None
    words = r"did not load version 3 of the weights within 0.2 s, the limit of actor_rollout_ref.nccl_timeout"
    assert words in reported(server, limit=0.2, wait=20)


def test_a_server_that_ended_is_reported(server):
    server.shutdown()
    server.server_close()
    assert "ended while it loaded version 3 of the weights" in reported(server, limit=600, wait=20)
