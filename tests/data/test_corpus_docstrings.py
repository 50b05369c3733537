"""The corpus of docstrings: parsed and never imported, the same each time."""

import itertools

import pytest

from bnp_dask.cli.demo import PYTHON_WORDS, docstrings, stop_words
from bnp_dask.data import Text, load_documents, load_vocabulary
from bnp_dask.data.ingestion.ingest import ingest

PROSE = "The harbour shelters fishing boats from winter storms while gulls circle above the old stone lighthouse tower."

MODULE = f'''"""{PROSE}

>>> import this_is_code_and_is_left_out
"""
raise SystemExit("this module must not be imported")

class Boat:
    """A boat. {PROSE}"""

    def sail(self):
        """Sail it. {PROSE}"""

        def inner():
            """Not listed. {PROSE}"""

if True:
    async def wait():
        r"""Wait for it. {PROSE}"""

def short():
    """Too short."""
'''


def test_what_is_taken(tmp_path):
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/sea.py": MODULE,
        "pkg/copy_of_sea.py": MODULE,
        "pkg/tests/test_it.py": MODULE.replace("boat", "test"),
        "pkg/broken.py": '"""' + PROSE + '"""\ndef f(:\n',
        "pkg/bytes.py": '# coding: latin-1\n"""é ' + PROSE + '"""\n',
        "other.py": '"""Other. ' + PROSE + '"""\n',
        "not-a-module.py": MODULE.replace("boat", "ship"),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="latin-1")
    found = list(docstrings(roots=[tmp_path]))
    assert [d.id for d in found] == [
        "other",
        "pkg.bytes",
        "pkg.copy_of_sea",
        "pkg.copy_of_sea.Boat",
        "pkg.copy_of_sea.Boat.sail",
        "pkg.copy_of_sea.wait",
    ]
    assert [d.metadata["kind"] for d in found] == ["module"] * 3 + ["class", "function", "function"]
    assert found[1].text == "é " + PROSE and found[2].text.strip() == PROSE
    assert [d.id for d in docstrings(limit=2, roots=[tmp_path])] == ["other", "pkg.bytes"]


@pytest.mark.long
def test_the_corpus_of_this_machine(tmp_path):
    found = list(docstrings(limit=1500))
    assert len(found) == 1500 == len({d.id for d in found}) == len({d.text for d in found})
    assert found[:300] == list(itertools.islice(docstrings(), 300))
    assert len({d.metadata["package"] for d in found}) > 50
    text = Text(stop_words=stop_words(), token_pattern=r"(?u)\b[a-z]{3,}\b", min_df=5, max_df=0.3)
    report = ingest(found, tmp_path / "x.zarr", batch_bytes=2**18, text=text)
    vocabulary = load_vocabulary(tmp_path / "x.zarr")
    assert report.n_atoms > 1400 and 300 < len(vocabulary) < 5000
    assert not set(vocabulary.words) & set(PYTHON_WORDS) and "file" in vocabulary.words
    assert load_documents(tmp_path / "x.zarr").column_names == ["id", "package", "kind", "begins"]
