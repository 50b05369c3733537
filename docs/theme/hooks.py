"""Hooks of the site: whose program a block is, and roles of docstrings, which Markdown does not know."""

import re
from typing import Any

_SIDE = re.compile(r"(<!-- side: ([^>]+) -->\n(?:<!-- [^>]+ -->\n)*```python)\n")
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):<code>~?([\w.]+)(?: &lt;([\w.]+)&gt;)?</code>")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page whose programs of several libraries have the library's name above them."""
    return _SIDE.sub(r'\1 title="\2"' + "\n", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A page in which ``:func:`name``` is a link where the page has the name, and ``::`` a colon."""

    def link(match: re.Match[str]) -> str:
        shown, name = f"<code>{match[1]}</code>", match[2] or match[1]
        return f'<a href="#{name}">{shown}</a>' if f'id="{name}"' in html else shown

    return _ROLE.sub(link, html).replace("::</p>", ":</p>")
