"""Lists of topics as sequences and as tables."""

from __future__ import annotations

import sys

import pytest

from bnp_dask.core.table import Table, TopicLine, TopicList, pandas_for
from bnp_dask.errors import SettingError

LINES = (TopicLine(7, 0.25, 1234.4, ["sea", "<b>"]), TopicLine(12, 0.0049, None, ["hill"]))


def test_a_list_of_topics_is_a_sequence():
    topics = TopicList(LINES)
    assert (len(topics), tuple(topics), topics[1], topics[-2]) == (2, LINES, LINES[1], LINES[0])
    assert isinstance(topics[:1], TopicList) and tuple(topics[1:]) == LINES[1:]


def test_a_list_of_topics_is_a_table():
    topics = TopicList(LINES)
    assert str(topics) == repr(topics)
    assert str(topics).splitlines() == [
        "topic   share  tokens  words",
        "-----  ------  ------  " + "-" * 40,
        "    7  25.00%   1,234  sea <b>",
        "   12   0.49%       ?  hill",
    ]
    page = topics._repr_html_()
    assert '<th scope="row">7</th><td>25.00%</td><td>1,234</td>' in page.replace("\n", "")
    assert "sea &lt;b&gt;" in page and page.count("<tr>") == 3


def test_topics_that_were_left_out_have_a_line():
    topics = TopicList(LINES, rest="and 3 more")
    assert str(topics) == f"{TopicList(LINES)}\nand 3 more" and "and 3 more" in topics._repr_html_()
    assert str(TopicList(())).splitlines()[0] == "topic  share  tokens  words"


def test_a_table_is_text_with_numbers_to_the_right_and_words_to_the_left():
    table = Table(
        ("name", "n", "what"), [("sea", "7", "water"), ("mountains", "12", "")], left=(0, 2), notes=["a note"]
    )
    assert table.text().splitlines() == [
        "name        n  what",
        "---------  --  ----",
        "sea         7  water",
        "mountains  12",
        "a note",
    ]
    assert Table(("n", "share"), [("100", "5")]).text().splitlines() == ["  n  share", "---  -----", "100      5"]


def test_pandas_is_asked_for_by_the_call_that_needs_it(monkeypatch):
    assert pandas_for("to_frame()").__name__ == "pandas"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingError, match=r"to_frame\(\) needs pandas: pip install 'bnp-dask\[dataframe\]'"):
        pandas_for("to_frame()")
