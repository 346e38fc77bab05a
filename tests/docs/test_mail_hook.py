"""The hook that stands in for cron's MAILTO sends a real mail, to a mail server of three answers."""

from __future__ import annotations

import runpy
import smtplib
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT, files

from evertick import Event, Scheduler
from evertick.testing import virtual_time_sync

PAGE = ROOT / "docs/how-to/migrate-from-cron.md"


class MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailConversation)
        self.mails: list[str] = []


class MailConversation(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.answer("220 ready")
        for line in self.rfile:
            match line.split()[0].upper():
                case b"DATA":
                    self.answer("354 go on")
                    self.server.mails.append(self.mail())
                    self.answer("250 taken")
                case b"QUIT":
                    return self.answer("221 bye")
                case _:
                    self.answer("250 well")
        return None

    def mail(self) -> str:
        return b"".join(iter(self.rfile.readline, b".\r\n")).decode()

    def answer(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with MailServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(smtplib.SMTP, "default_port", server.server_address[1])
        yield server
        server.shutdown()


def test_a_job_that_fails_sends_its_traceback_by_mail(tmp_path: Path, mail_server: MailServer) -> None:
    [block] = [block for block in files(PAGE) if block.file == "mail.py"]
    block.save(tmp_path)
    mail = runpy.run_path(str(tmp_path / "mail.py"))["mail"]
    scheduler = Scheduler("sqlite://")

    @scheduler.cron("30 2 * * *")
    def backup() -> None:
        raise OSError("the tape is full")

    sent = threading.Event()

    @scheduler.on("failed")
    def send(event: Event) -> None:
        mail(event)
        sent.set()

    with virtual_time_sync(scheduler) as kit:
        kit.advance("1d")
        assert sent.wait(10)
    [text] = mail_server.mails
    assert "To: ops@example.org" in text
    assert "Subject: backup failed, attempt 1" in text
    assert "OSError: the tape is full" in text
