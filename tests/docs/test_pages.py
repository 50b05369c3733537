"""Every page of the documentation runs as it is written, shows what it prints, and links to what is there."""

from __future__ import annotations

import re

import pytest

from bnp_dask import _names
from bnp_dask.cli import build_parser
from tests.docs.pages import DOCS, ROOT, Page, all_pages, blocks, difference, run

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

OWN_FILES = {path for path in (DOCS / "extend").glob("*.md") if path.name != "index.md"}
"""Pages that show files of a reader's own package."""

_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def marked(page: Page) -> object:
    is_first = page.path.name in ("README.md", "index.md")
    return pytest.param(page, id=page.name, marks=[pytest.mark.timeout(900), *([] if is_first else [pytest.mark.long])])


@pytest.mark.parametrize("page", [marked(page) for page in all_pages()])
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    if page.missing:
        pytest.skip(f"{page.missing} is not here")
    monkeypatch.chdir(tmp_path)
    for outcome in run(page):
        if wrong := difference(outcome):
            pytest.fail(f"{page.name}:{outcome.block.line}\n{wrong}", pytrace=False)
    for name in page.pictures:
        assert (tmp_path / name).stat().st_size < 100_000
        assert (page.path.parent / name).stat().st_size < 100_000


def test_a_wrong_output_a_failed_command_and_a_foreign_one_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def outcome(text: str) -> list[str]:
        path = tmp_path / "page.md"
        path.write_text(text)
        monkeypatch.setattr(Page, "name", "page.md")
        return [difference(o) for o in run(Page(path))]

    assert outcome("```python\nprint(1, 2)\n```\n```text\n1 ...\n```\n") == [""]
    assert "printed:\n1" in outcome("```python\nprint(1)\n```\n```text\n2\n```\n")[0]
    assert outcome("<!-- not run: no need -->\n```bash\nrm -r /\n```\n") == []
    for line in ("ls", "bnp-dask inspect nothing.here"):
        with pytest.raises(AssertionError, match=line):
            outcome(f"```bash\n{line}\n```\n")


def test_real_files_of_a_page_are_linked_and_named_where_they_are_missing(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "there.txt").write_text("words")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("tests.docs.pages.SHARED", tmp_path)
    monkeypatch.chdir(tmp_path / "empty")
    text = "<!-- data: folder/{} -->\n```python\nimport pathlib\nprint(pathlib.Path('there.txt').read_text())\n```\n"
    pages = []
    for name in ("there.txt", "gone.txt"):
        pages.append(Page(tmp_path / f"{name}.md"))
        pages[-1].path.write_text(text.format(name))
    assert [page.missing for page in pages] == ["", "folder/gone.txt"]
    assert [outcome.printed for outcome in run(pages[0])] == ["words\n"]
    assert (tmp_path / "empty" / "there.txt").is_symlink()


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in _LINK.findall(path.read_text(encoding="utf-8")):
        if link.startswith("https:"):
            continue  # tests/docs/test_links.py
        name, _, place = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if place:
            assert place in map(anchor, _HEADING.findall(target.read_text(encoding="utf-8"))), link


@pytest.mark.parametrize("path", [p for p in TEXTS if p not in OWN_FILES], ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_names_in_the_text_exist(path):
    """Modules such as ``inference/drive.py``, folders, and names such as ``bnp.train`` in the prose."""
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", text):
        places = (ROOT / name, ROOT / "bnp_dask" / name, path.parent / name)
        assert any(place.exists() for place in places), f"{name} is nowhere"
    for name in re.findall(r"`bnp\.(\w+)", text):
        assert name in _names.PUBLIC, f"bnp.{name}"


_NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|!\[[^\]]*\]\([^)]*\)|^#.*?$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", DOCS / "index.md", *sorted((DOCS / "guides").glob("*.md"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_atoms_laps_and_nats_are_explained_where_they_first_stand(path):
    """In a link to the glossary, or in words right before or behind them."""
    prose = _NOT_PROSE.sub("", path.read_text(encoding="utf-8"))
    for word in ("atom", "lap", "nat"):
        if first := re.search(rf"(?<![\w-]){word}s?(?![\w-])", prose):
            around = prose[max(first.start() - 60, 0) : first.end() + 90]
            explained = re.match(r"\** (\(|of a table are|are its unit)", prose[first.end() :])
            assert explained or "glossary.md#" in around, around


def test_every_public_class_is_named_in_a_guide():
    guides = "".join(p.read_text(encoding="utf-8") for p in DOCS.rglob("*.md") if p.name != "api.md")
    groups = (_names.ALLOCATIONS, _names.OBSERVATIONS, _names.SCHEDULES, _names.INITIALIZATIONS, _names.MOVES)
    for name in (name for group in groups for name in group):
        assert f"`{name}" in guides, name


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: bnp_dask\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(set(_names.PUBLIC) - {"__version__"})


def test_every_command_of_the_text_exists():
    commands = next(a for a in build_parser()._actions if a.dest == "command").choices
    for path in TEXTS:
        for block in blocks(path.read_text(encoding="utf-8")):
            for word in re.findall(r"^(?:srun )?bnp-dask ([a-z]\w*)", block.text, re.MULTILINE):
                assert word in commands, f"{path.name}: bnp-dask {word}"
