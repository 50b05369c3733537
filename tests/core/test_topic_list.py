"""Lists of topics as sequences and as tables."""

from __future__ import annotations

from bnp_dask.core.table import TopicLine, TopicList

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
