"""Feeds of a run that grows: a message queue, and micro-batches that Spark writes.

A queue needs two functions: what is there after a position, and how to read it.  The run notes positions with the
version that holds the data, so that a queue may deliver twice, and a process may die at any moment.

    python examples/feeds.py
"""

import json
import logging
import os
import tempfile
from pathlib import Path

import numpy as np

import bnp_dask as bnp


def queue_feed(log: Path) -> bnp.Feed:
    """A feed of messages that a broker appends to a log: one JSON object a line, with an offset and rows.

    With Kafka, ``after`` polls from the offset after the position, and ``read`` returns the rows of that message.
    """

    def messages() -> dict[str, list[list[float]]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return {str(found["offset"]): found["rows"] for found in map(json.loads, lines)}

    def after(position: str | None) -> list[str]:
        return [offset for offset in messages() if position is None or int(offset) > int(position)]

    return bnp.Feed("orders", after, lambda offset: np.array(messages()[offset]))


class Inbox:
    """Micro-batches of Spark as files that ``bnp_dask.follow`` takes in.

    ``stream.writeStream.foreachBatch(Inbox("inbox")).start()``; Spark repeats a batch under its number after a failure,
    which writes the same file again.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def __call__(self, frame, number: int) -> None:
        place = self.folder / f"batch{number:09d}.parquet"
        if not place.exists():
            unfinished = place.with_suffix(".parquet.part")
            frame.toPandas().to_parquet(unfinished)
            unfinished.rename(place)  # whole, or not there


def main() -> None:
    logging.getLogger("bnp_dask").setLevel(logging.ERROR)
    folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    first = np.concatenate([rng.normal(0, 1, (400, 2)), rng.normal(9, 1, (400, 2))])
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    bnp.train(model, first, store=folder / "run", batch_size=100)
    with open(folder / "orders.log", "w") as log:
        for offset in range(3):
            rows = rng.normal([[0.0, 9.0 * (offset % 2)]], 1.0, (100, 2))
            log.write(json.dumps({"offset": offset, "rows": rows.tolist()}) + "\n")
    feed = queue_feed(folder / "orders.log")
    found = bnp.update(folder / "run", feed)
    print(f"version {found.version}: {', '.join(found.new)}, K={found.posterior.n_clusters}")
    print(f"delivered again: {bnp.update(folder / 'run', feed).new_batches} new batches")


if __name__ == "__main__":
    main()
