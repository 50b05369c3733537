"""Topics of Python's documentation: docstrings of the standard library and of installed packages.

Every Python machine has this English corpus.  Sources are parsed, never imported: no code of other packages runs.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sysconfig
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bnp_dask.allocation import HDPTopics
from bnp_dask.analysis.score import completion_score
from bnp_dask.analysis.topics import topic_list
from bnp_dask.analysis.topics.words import word_tokens
from bnp_dask.cli.console import table
from bnp_dask.cli.demo.stage import Stage
from bnp_dask.core import Batch
from bnp_dask.data import Text, ingest
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs import say
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Multinomial
from bnp_dask.reports.run_page import report

START = 20
"""Number of initial topics; moves decide the final number."""

LAPS = 15
BATCHES = 8
HELD_OUT = 10
"""One document in this many is held out and scored."""

READ_TOLD = 4000
"""Docstrings between two lines about how many were read."""

SHOWN, WORDS = 40, 8
PATTERN = r"(?u)\b[a-z]{3,}\b"
"""Words of letters; names with underscores and numbers are code."""


def play(stage: Stage, limit: int | None) -> Path:
    """Read, count, train, score, and write the page."""
    train, heldout = collect(stage, LIMIT if limit is None else limit)
    store, other = stage.path("docstrings.zarr"), stage.path("heldout.zarr")
    # words of very few documents tell little about topics, and words of many tell nothing
    text = Text(stop_words=stop_words(), min_df=max(2, len(train) // 1500), max_df=0.1, token_pattern=PATTERN)
    stage.say(str(ingest(train, store, text=text, batch_size=-(-len(train) // BATCHES))))
    ingest(heldout, other, vocabulary=store)
    laps = LAPS if stage.laps is None else stage.laps
    result = stage.train(Model(HDPTopics(), Multinomial()), store, BregmanKMeans(START), Memoized(laps=laps))
    posterior = result.posterior
    stage.tell_of_end(result)
    lines = topic_list(posterior, WORDS)
    say(f"{result.reason}, {result.seconds:.0f} s, from {START} topics to {len(lines)}; the largest:")
    say(table(("topic", "share", "words"), [(f"{t.id}", f"{t.share:.1%}", " ".join(t.words)) for t in lines[:SHOWN]]))
    if len(lines) > SHOWN:
        say(f"... and {len(lines) - SHOWN} more")
    stage.say("scoring the documents that were kept apart ...")
    found, plain = completion_score(posterior, other), completion_score(one_topic(posterior), other)
    say(
        f"{found.n_documents:,} documents that were kept apart: a fifth of the distinct words of each, predicted from "
        f"the rest, scores {found.score:.3f} nats per token (frequencies of words alone: {plain.score:.3f})"
    )
    stage.say("writing the page ...")
    page = stage.folder / "topics.html"
    report(stage.path("run"), page)
    return page


def collect(stage: Stage, limit: int) -> tuple[list[Docstring], list[Docstring]]:
    """Documents to train on, and held-out ones."""
    stage.say("reading docstrings of the standard library and the installed packages (sources are parsed, not run)")
    documents = []
    for document in docstrings(limit):
        documents.append(document)
        if len(documents) % READ_TOLD == 0:
            stage.say(f"{len(documents):,} docstrings so far")
    packages = Counter(d.metadata["package"] for d in documents)
    stage.say(f"{len(documents):,} docstrings of {len(packages)} packages")
    held = np.arange(len(documents)) % HELD_OUT == 0
    return [d for d, h in zip(documents, held) if not h], [d for d, h in zip(documents, held) if h]


def one_topic(posterior: Posterior) -> Posterior:
    """Posterior with a single topic that has all tokens: the frequencies of words."""
    tokens = sparse.csr_array(np.asarray(word_tokens(posterior))[None])
    model = posterior.model
    return model.global_step(model.summarize(np.zeros(1, np.int64), Batch(tokens), np.ones((1, 1))))


LEAST_WORDS = 15
"""Least words of a docstring: shorter ones carry little information."""

LIMIT = 15_000
"""Most documents."""

FILE_BYTES = 2 * 2**20
"""Largest source: larger ones are generated tables, not prose."""

BEGIN = 140
"""Characters of the beginning that are kept as metadata."""

SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "testing", "_test", "_tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
    | {"node_modules", "lib2to3", "_vendor", "vendor", "vendored", "_vendored_packages", "externals", "extern"}
)
"""Tests, and copies of packages inside of others."""

_PROMPT = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)
"""Lines of examples, which are code."""

_WORD = re.compile(r"[A-Za-z]{2,}")

PYTHON_WORDS = tuple(
    """
    abc abstract add added additional all allow allowed allows alternatively and any appropriate are arg args
    argument arguments array array_like arrays assert associated attr attribute attributes automatically
    available axis bar based behavior behaviour bool boolean bound bytes call callable callback called calling
    calls case cases cause class classes classmethod cls code com compatibility compatible contain containing
    contains corresponding create created creates current currently custom data dataframe def default defaults
    defined defines definition deprecated desired detail details dict dictionary different directly disable do
    doc docs docstring doctest documentation does doesn don done dtype each effect either element elements else
    enable ensure error errors etc example examples exception exceptions existing exists expected explicit
    explicitly extra false field fields find first float following follows foo for form format from full func
    function functions general generally get gets getting github given gives handle has hasn have help here http
    https implementation implementations implemented implements import imports include included includes
    including indicate indicates indicating individual inf info information initial initialize input inputs
    instance instances instead int integer intended internal into invalid ipython is isinstance isn it item
    items iter iterable iterator itself just key keyword kwarg kwargs last len let like list lists longer made
    main make makes making may mean means meant message meth method methods mode modified module modules more
    multiple must name named names nan ndarray necessary need needed needs new none normal normally not note
    notes np number numbers numpy obj object objects of old one ones only operation optional optionally options
    or org original other otherwise output outputs overridden override own package packages pair pandas param
    parameter parameters params parent pass passed passing pd perform performed performs place plt possible
    present previous private produce property provide provided provides providing public purpose py pydata
    python raise raised raises ref reference references related removed replace represent representation
    representing represents require required requires respectively result results ret retrieve return returned
    returning returns rtype run same scipy section see seealso self set sets shape should similar simple simply
    since single size sklearn some specific specified specifies specify static str string strings sub subclass
    subclasses such support supported supports taken takes than that the their them then there these they this
    three throw to true try tuple tuples two type typeerror types typically typing undefined underlying unique
    unless unused up update updated use used useful user uses using usually valid value valueerror values var
    variable variables various versionadded versionchanged via void warning was way well were when whether which
    while will with within without won work works would wrapper www yes yield yields you your
    """.split()  # noqa: SIM905
)
"""Words of documentation itself, which are independent of the subject."""


class Docstring(NamedTuple):
    """One docstring: qualified name, text, and metadata of its origin."""

    id: str
    text: str
    metadata: dict[str, Any]


def stop_words() -> list[str]:
    """Stop words of this corpus: scikit-learn's English ones, Python's names of types, and :data:`PYTHON_WORDS`."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS.union(PYTHON_WORDS))


def docstrings(
    limit: int | None = LIMIT,
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> Iterator[Docstring]:
    """Docstrings of modules, classes and functions, one document each, in alphabetical order of files.

    Texts of few words are left out (:data:`LEAST_WORDS`); so are tests, and repeated texts.

    Parameters
    ----------
    limit
        Most documents.  If there are more, packages take turns, a file each, so that none dominates; None for all.
    roots
        Folders of sources.  Default: the standard library, then the installed packages.

    Yields
    ------
    Docstring
        ``(id, text, metadata)``, with ids such as ``"json.decoder.JSONDecoder.decode"``, and the metadata ``package``,
        ``kind`` (module, class or function) and ``begins``, the first words.  A list of them is ready for
        :func:`bnp_dask.ingest`.
    """
    folders = [Path(root) for root in (roots if roots is not None else default_roots())]
    seen_texts: set[int] = set()
    seen_ids: set[str] = set()
    given = 0
    for name, path in _in_turn(folders):
        for found in _of_file(name, path):
            mark = hash_of(found.text)
            if mark in seen_texts or found.id in seen_ids:
                continue
            seen_texts.add(mark)
            seen_ids.add(found.id)
            yield found
            given += 1
            if limit is not None and given >= limit:
                return


def default_roots() -> list[Path]:
    """The standard library and the folders of installed packages."""
    paths = sysconfig.get_paths()
    found: list[Path] = []
    for key in ("stdlib", "purelib", "platlib"):
        path = Path(paths[key])
        if path not in found:
            found.append(path)
    return found


def hash_of(text: str) -> int:
    """A number for a text, the same in every process; blank space does not count."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=8).digest())


def _in_turn(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Qualified names and paths of sources; packages take turns, one file each, until all are done."""
    queues = []
    for folder in folders:
        packages: dict[str, list[tuple[str, Path]]] = {}
        for name, path in _sources(folder):
            packages.setdefault(name.split(".")[0], []).append((name, path))
        queues += [iter(packages[package]) for package in sorted(packages)]
    while queues:
        left = []
        for queue in queues:
            item = next(queue, None)
            if item is not None:
                yield item
                left.append(queue)
        queues = left


def _sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Modules below a folder, alphabetically: qualified name and path."""
    for folder, below, files in os.walk(root):
        below[:] = sorted(d for d in below if d not in SKIPPED_FOLDERS and d.isidentifier())
        parts = Path(folder).relative_to(root).parts
        for file in sorted(files):
            stem = file.removesuffix(".py")
            if stem == file or not stem.isidentifier() or stem.startswith("test_") or stem.endswith("_test"):
                continue
            names = [*parts] if stem == "__init__" else [*parts, stem]
            if names and stem != "conftest":
                yield ".".join(names), Path(folder) / file


def _of_file(module: str, path: Path) -> Iterator[Docstring]:
    try:
        if path.stat().st_size > FILE_BYTES:
            return
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return
        with warnings.catch_warnings():
            # new Pythons warn of escapes in old sources
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = module.split(".")[0]
    for name, kind, text in _walk(tree, module):
        clean = _PROMPT.sub("", inspect.cleandoc(text))
        if len(_WORD.findall(clean)) >= LEAST_WORDS:
            whole = clean.encode("utf-8", "replace").decode()
            begins = textwrap.shorten(whole, BEGIN, placeholder=" …")
            yield Docstring(name, whole, {"package": package, "kind": kind, "begins": begins})


def _walk(tree: ast.Module, module: str) -> Iterator[tuple[str, str, str]]:
    """Qualified name, kind and docstring of a module's definitions, in the order of the source."""
    waiting: list[tuple[str, str, Any]] = [(module, "module", tree)]
    while waiting:
        name, kind, node = waiting.pop()
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            text = body[0].value.value
            if isinstance(text, str):
                yield name, kind, text
        if kind == "function":
            # functions inside functions are not documentation
            continue
        below = []
        for child in _definitions(body):
            inner = "class" if isinstance(child, ast.ClassDef) else "function"
            below.append((f"{name}.{child.name}", inner, child))
        waiting += reversed(below)


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions among statements, including statements under ``if`` and ``try``."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _definitions([*node.body, *node.orelse])
