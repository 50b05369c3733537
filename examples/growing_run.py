"""A week of texts, a day at a time: the docstrings of installed packages, some subjects of which begin on later days.

Monday's texts train a Dirichlet process mixture of multinomials.  Each later day is taken in by one update: clusters
keep their ids, new ones appear, and every day leaves a version that can be loaded.  The words are those of Monday.

    python examples/growing_run.py

From the command line, after ``python examples/growing_run.py --write week`` has written a folder of text files for each
day, see the guide on growing runs (docs/guides/growing.md).
"""

import importlib
import inspect
import logging
import sys
import tempfile
import zlib
from pathlib import Path

import bnp_dask as bnp

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
SUBJECTS = {
    "Monday": "numpy numpy.linalg numpy.random numpy.ma scipy.linalg scipy.special scipy.stats scipy.sparse os pathlib",
    "Wednesday": "scipy.signal scipy.ndimage scipy.interpolate",
    "Friday": "asyncio subprocess collections concurrent.futures",
}
"""Modules whose docstrings come from this day on."""

STOP = (
    "array array_like axis default example examples float function given int ndarray none notes numpy np optional "
    "parameters returns return scipy shape see true false type used using value values versionadded docs import"
)


def texts_of(day: str) -> list[tuple[str, str]]:
    """Names and docstrings of one day: of each subject that has begun, its share of the days that are left."""
    found = {}
    for begin, modules in SUBJECTS.items():
        days = DAYS[DAYS.index(begin) :]
        for name in modules.split() if day in days else ():
            module = importlib.import_module(name)
            for member in sorted(dir(module)):
                text = inspect.getdoc(getattr(module, member)) or ""
                turn = days[zlib.crc32(text.encode()) % len(days)]
                public = callable(getattr(module, member)) and not member.startswith("_")
                if public and len(text) >= 300 and turn == day:
                    found[text] = f"{name}.{member}"
    return [(name, text) for text, name in found.items()]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    monday = texts_of("Monday")
    words = bnp.Text(stop_words=[*STOP.split(), *english_stop_words()], token_pattern="[a-z]{3,}", min_df=2, max_df=0.2)
    bnp.ingest(monday, folder / "monday.zarr", text=words, batch_size=60)
    logging.getLogger("bnp_dask").setLevel(logging.ERROR)

    model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Multinomial(lam=0.1))
    schedule = bnp.Memoized(laps=50, tolerance=1e-5)
    result = bnp.train(
        model, folder / "monday.zarr", init=bnp.BregmanKMeans(10), schedule=schedule, store=folder / "week"
    )
    print(f"Monday: {len(monday)} texts, K={result.posterior.n_clusters}")
    for day in DAYS[1:]:
        texts = [text for _, text in texts_of(day)]
        found = bnp.update(folder / "week", texts, batch_size=60)
        born = [change.cluster for change in found.changes if change.kind == "born"]
        print(
            f"{day}: {len(texts)} texts, version {found.version}, K={found.posterior.n_clusters}, "
            f"{found.fresh:.1f} nats per text before they were folded, born: {born or 'none'}"
        )
    print("\nsince Monday:")
    for change in bnp.changes(folder / "week", since=0, share=0.5):
        others = f" ({', '.join(map(str, change.others))})" if change.others else ""
        print(f"  {change.kind} {change.cluster}{others}: {change.before:.0f} -> {change.after:.0f} texts")
    print(bnp.inspect(folder / "week", limit=10))


def write(folder: Path) -> None:
    """Write the texts of each day, a file each, to a folder of its own."""
    for day in DAYS:
        place = folder / day.lower()
        place.mkdir(parents=True)
        for name, text in texts_of(day):
            (place / f"{name}.txt").write_text(text, "utf-8")
    print(f"wrote {folder} with {', '.join(day.lower() for day in DAYS)}")


def english_stop_words() -> list[str]:
    """Common English words."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS)


if __name__ == "__main__":
    write(Path(sys.argv[2])) if sys.argv[1:2] == ["--write"] else main()
