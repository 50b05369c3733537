"""A store that is down is told within seconds, also by commands that ask it several times."""

import socket
import threading
import time

import pytest

from bnp_dask.core.location import REMEMBERED_SECONDS, VARIABLE, Contact, NoAnswerError, answer_seconds
from bnp_dask.errors import SettingError


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.1")


def test_storage_that_is_silent_is_waited_for_once_and_not_asked_again_for_a_moment(brief):
    contact, never, asked = Contact(), threading.Event(), []

    def hang():
        asked.append(1)
        never.wait(60.0)

    try:
        for _ in range(5):
            with pytest.raises(NoAnswerError, match=f"no answer in 0.1 s.*{VARIABLE}"):
                contact.ask(hang)
    finally:
        never.set()
    assert len(asked) == 1 and REMEMBERED_SECONDS > 0


def test_storage_that_answered_once_is_trusted(brief):
    contact = Contact()
    assert contact.ask(lambda: 3) == 3
    here = []
    contact.ask(lambda: here.append(threading.current_thread()))
    assert here == [threading.current_thread()], "no thread, and so no limit"


@pytest.mark.parametrize("error", [FileNotFoundError("x"), PermissionError("x")])
def test_a_refusal_is_an_answer(brief, error):
    contact = Contact()

    def refuse():
        raise error

    with pytest.raises(type(error)):
        contact.ask(refuse)
    assert contact.is_made


def test_an_error_of_the_line_is_no_answer(brief):
    contact, lost = Contact(), FileNotFoundError("x")
    lost.__cause__ = ConnectionRefusedError("down")
    for error in (lost, ConnectionError("down")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error)):
            contact.ask(fail)
        assert not contact.is_made


def test_the_limit_is_a_setting(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert answer_seconds() == 7.0
    monkeypatch.setenv(VARIABLE, "2.5")
    assert answer_seconds() == 2.5
    for wrong in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(SettingError, match="needs a positive number of seconds"):
            answer_seconds()


def test_commands_on_a_service_that_accepts_and_never_answers(tmp_path, monkeypatch, capsys):
    """Each ends within the limit and what it takes to look once more, and names the place."""
    pytest.importorskip("s3fs")
    from bnp_dask.cli import main

    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            VARIABLE: "0.5",
        }.items():
            monkeypatch.setenv(name, value)
        for words in (
            ["inspect", "RUN"],
            ["versions", "RUN"],
            ["resume", "RUN"],
            ["report", "RUN", "o.html"],
            ["ls", "RUN"],
        ):
            bucket = f"s3://nowhere-{words[0]}/run"
            started = time.monotonic()
            assert main([word.replace("RUN", bucket) for word in words]) == 2
            assert time.monotonic() - started < 10.0
            said = capsys.readouterr().err
            assert "no answer in 0.5 s" in said and bucket in said and len(said.splitlines()) == 1
