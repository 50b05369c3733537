"""Lines for the user: one for each message, nothing that a terminal obeys; streams that are closed, full or gone."""

import errno
import io
import os
import subprocess
import sys

import pytest

from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inputs.settings import LONGEST, local_path, one_line, open_standard_files, say, shortened, shown, tell


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n  b\tc\r\nd", "a b c d"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("nul\0", r"nul\x00"),
        (os.fsdecode(b"caf\xe9"), r"caf\udce9"),
        ("\u2028 two \x85 lines", "two lines"),
        ("über 日本 می\u200cخواهم", "über 日本 می\u200cخواهم"),
        ("", ""),
    ],
)
def test_a_message_is_one_line_that_a_terminal_can_show(text, line):
    assert one_line(text) == line


def test_long_messages_lose_their_middle():
    line = one_line("begin " + "x" * 10**6 + " end")
    assert len(line) <= LONGEST
    assert line.startswith("begin x")
    assert line.endswith("x end")
    assert shortened("abc", 3) == "abc"


def test_values_are_quoted_shortly():
    assert shown("a\0") == r"'a\x00'"
    assert len(shown(list(range(10**5)))) <= 80
    assert "whole number" in shown(10**5000)  # Python refuses to write it out
    deep = []
    for _ in range(10**5):
        deep = [deep]
    assert "list" in shown(deep)


class Stream(io.StringIO):
    """A stream that fails in a way of its own."""

    def __init__(self, error=None, encoding="utf-8"):
        super().__init__()
        self.error, self._encoding = error, encoding

    @property
    def encoding(self):
        return self._encoding

    def write(self, text):
        if self.error is not None:
            raise self.error
        text.encode(self._encoding)  # as a file would
        return super().write(text)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_of_any_encoding_takes_any_text(monkeypatch, encoding):
    stream = Stream(encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    say("topic 1\twörter 日本 " + os.fsdecode(b"\xff") + "\x1b[2J\n  second line")
    first, second = stream.getvalue().rstrip("\n").split("\n")
    assert first.startswith("topic 1\tw") or "\\t" in first
    assert "\x1b" not in first
    assert second == "  second line"


def test_a_reader_that_has_gone_is_told_no_more_and_nobody_minds(monkeypatch):
    for name, write in (("stdout", say), ("stderr", tell)):
        monkeypatch.setattr(sys, name, Stream(BrokenPipeError()))
        write("one")
        assert getattr(sys, name) is None
        write("two")


def test_a_full_disk_behind_standard_output_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Stream(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StoreError, match="cannot write to standard output: No space left"):
        say("one")
    assert sys.stdout is None  # the interpreter does not try again at its end
    monkeypatch.setattr(sys, "stderr", Stream(OSError(errno.ENOSPC, "No space left on device")))
    tell("there is nobody to tell")


def test_closed_streams_lead_nowhere_and_not_into_the_next_file(tmp_path):
    code = (
        "import os\n"
        "from bnp_dask.inputs.settings import open_standard_files\n"
        "open_standard_files()\n"
        f"file = open({str(tmp_path / 'data')!r}, 'w')\n"
        "os.write(1, b'lost'); os.write(2, b'lost'); file.write('kept'); file.close()\n"
    )
    command = f'exec {sys.executable} -c "$CODE" <&- >&- 2>&-'
    subprocess.run(["bash", "-c", command], env={**os.environ, "CODE": code}, check=True, timeout=60)
    assert (tmp_path / "data").read_text() == "kept"
    open_standard_files()  # nothing to do here


# -- paths ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "an empty path"),
        ("a\0b", "NUL"),
        ("x" * 256, "a name of 256 bytes"),
        ("é" * 128, "a name of 256 bytes"),
        ("a/" * 3000, "a path of 6000 bytes"),
        ("~no-such-user/x", "there is no user 'no-such-user'"),
        ("\ud800", "no path can hold"),
        ("s3://bucket/x", "is a URL"),
    ],
)
def test_what_no_file_can_be_called(path, message):
    with pytest.raises(SettingError, match=message):
        local_path(path)


def test_what_files_can_be_called(tmp_path):
    assert local_path("~/x") == local_path(os.path.expanduser("~")) / "x"
    assert local_path(tmp_path) == tmp_path
    assert local_path(os.fsdecode(b"caf\xe9"))
    assert str(local_path("./~no-such-user")) == "~no-such-user"
    (tmp_path / ("x" * 255)).touch()
    assert local_path(tmp_path / ("x" * 255)).exists()
