"""Grey patches of photographs as dense rows, from an image or a folder of images, read once as a stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.core import Location
from bnp_dask.data.base import PIECE_BYTES
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.inputs import flag, hold, whole_number

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
"""Suffixes of images, in small or capital letters."""

LUMA = np.array([0.299, 0.587, 0.114])
"""Shares of red, green and blue in grey (ITU-R BT.601)."""

BUFFER_BYTES = 64 * 2**20
"""Bytes of patches held for shuffling, so that a batch has patches of many images."""

NAMED = 5
"""Unreadable images that a note names; the others are counted."""


@answering
@dataclass(frozen=True)
class Patches:
    """Settings by which images are cut into patches; for :func:`bnp_dask.ingest`.

    Parameters
    ----------
    side
        Pixels of a side; a patch becomes a row of ``side * side`` grey values, 0 (black) to 1, row by row.
    number
        Number of patches in all, at distinct random places, spread evenly over the images.  Images too small for their
        share give all their patches, and the others give more.  None: every place of every image.
    seed
        Seed of the places and of the order.
    remove_mean
        Subtract the mean of each patch (thesis 5.6.3, 7.2.1), so that a zero-mean likelihood fits.
    by_image
        Make each image a group, named by its file, for models of groups such as :class:`~bnp_dask.HDPTopics`: patches
        of an image lie together, images in random order.  Default: patches of all images are shuffled.
    """

    side: int = 8
    number: int | None = None
    seed: int = 0
    remove_mean: bool = True
    by_image: bool = False

    def __post_init__(self) -> None:
        least = {"side": 1, "seed": 0} if self.number is None else {"side": 1, "number": 1, "seed": 0}
        for name, lowest in least.items():
            hold(self, name, whole_number(name, getattr(self, name), lowest))
        hold(self, "remove_mean", flag("remove_mean", self.remove_mean))
        hold(self, "by_image", flag("by_image", self.by_image))


@dataclass(eq=False)
class PatchStream:
    """One reading of an image or a folder of images.

    Parameters
    ----------
    location, patches
        Images to read, and how to cut them.
    share
        Share of the images read so far, 0 to 1.
    n_images, n_patches
        Numbers of images that gave patches, and of their patches, so far.
    bad
        Images that could not be used: name and reason.
    """

    location: Location
    patches: Patches
    share: float = 0.0
    n_images: int = 0
    n_patches: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)

    def pieces(self) -> Iterator[np.ndarray]:
        """Patches ``(n, side * side)`` in random order, or image by image, a few megabytes at a time."""
        if self.patches.by_image:
            yield from self._cut_groups()
        else:
            rng = self._rng()
            yield from _shuffled(self._cut_all(rng), rng)
        if self.n_patches == 0:
            raise DataError(f"{self.location.name}: none of its images could be used; {_few(self.bad)}")

    def notes(self) -> tuple[str, ...]:
        """Notes for a report."""
        p = self.patches
        mean = ", each less its mean" if p.remove_mean else ""
        out = [f"{p.side}x{p.side} grey patches of {self.n_images:,} images{mean}"]
        if self.bad:
            out.append(f"{len(self.bad):,} images could not be used: {_few(self.bad)}")
        if p.number is not None and self.n_patches < p.number:
            out.append(
                f"{self.n_patches:,} patches instead of {p.number:,}: the images that could be used have no more"
            )
        return tuple(out)

    def groups(self) -> list[tuple[int, Location, int]]:
        """Number, file and patches of each image with patches, in the order of the store; every image is decoded.

        Images that cannot be used are noted.
        """
        files = self._files()
        rooms = self._rooms(files)
        for i, file in enumerate(files):
            if rooms[i]:
                try:
                    read_grey(file)
                except _unreadable() as error:
                    self.bad.append((file.basename, _why(error)))
                    rooms[i] = 0
        order = [int(i) for i in self._rng().permutation(len(files)) if rooms[i]]
        ordered = [rooms[i] for i in order]
        quotas = ordered if self.patches.number is None else shares(ordered, self.patches.number)
        return [(i, files[i], quota) for i, quota in zip(order, quotas, strict=True) if quota]

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.patches.seed, spawn_key=(0,)))

    def _cut_groups(self) -> Iterator[np.ndarray]:
        found = self.groups()
        for position, (i, file, quota) in enumerate(found):
            yield from self._cut(read_grey(file), quota, i)
            self.n_images, self.n_patches = self.n_images + 1, self.n_patches + quota
            self.share = (position + 1) / len(found)

    def _cut_all(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        files = self._files()
        rooms = self._rooms(files)
        # images in random order, so that the shuffled buffer always holds patches of images from anywhere
        left = [int(i) for i in rng.permutation(len(files)) if rooms[i]]
        wanted = self.patches.number
        for position, i in enumerate(left):
            quota = rooms[i] if wanted is None else shares([rooms[j] for j in left[position:]], wanted)[0]
            if quota:
                try:
                    image = read_grey(files[i])
                except _unreadable() as error:
                    self.bad.append((files[i].basename, _why(error)))
                    quota = 0
                else:
                    yield from self._cut(image, quota, i)
                    self.n_images, self.n_patches = self.n_images + 1, self.n_patches + quota
            wanted = None if wanted is None else wanted - quota
            self.share = (position + 1) / len(left)

    def _cut(self, image: np.ndarray, quota: int, index: int) -> Iterator[np.ndarray]:
        p = self.patches
        rng = np.random.default_rng(np.random.SeedSequence(p.seed, spawn_key=(1, index)))
        places = rng.choice(_room(image.shape, p.side), quota, replace=False)
        step = max(1, PIECE_BYTES // (8 * p.side**2))
        for start in range(0, quota, step):
            yield cut(image, p.side, places[start : start + step], p.remove_mean)

    def _files(self) -> list[Location]:
        if not self.location.is_dir():
            return [self.location]
        files = images_in(self.location)
        if not files:
            raise DataError(f"{self.location.name}: a folder without images ({', '.join(SUFFIXES)})")
        return files

    def _rooms(self, files: list[Location]) -> list[int]:
        """Number of places for a patch in each image, from its header alone; 0 if the image cannot be used."""
        rooms = []
        for file in files:
            try:
                width, height = _with_image(file, lambda image: image.size)
            except _unreadable() as error:
                self.bad.append((file.basename, _why(error)))
                rooms.append(0)
                continue
            rooms.append(_room((height, width), self.patches.side))
            if not rooms[-1]:
                self.bad.append((file.basename, f"{width}x{height} pixels are smaller than a patch"))
        return rooms


def group_names(files: list[Location]) -> list[str]:
    """Names of files without their folder; full names if two would be equal."""
    names = [file.basename for file in files]
    return names if len(set(names)) == len(names) else [file.name for file in files]


def images_in(folder: Location) -> list[Location]:
    """Images below a folder, by path."""
    return [file for file in folder.files(("",)) if is_image(file.basename)]


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return name.lower().endswith(SUFFIXES)


def shares(rooms: list[int], wanted: int) -> list[int]:
    """Whole numbers as even as possible, none above its room, that sum to ``wanted`` or to the sum of rooms."""
    out = [0] * len(rooms)
    left = min(wanted, sum(rooms))
    by_room = sorted(range(len(rooms)), key=lambda i: (rooms[i], i))
    for done, i in enumerate(by_room):
        out[i] = min(rooms[i], left // (len(rooms) - done))
        left -= out[i]
    return out


def cut(image: np.ndarray, side: int, places: np.ndarray | None = None, remove_mean: bool = True) -> np.ndarray:
    """Patches of a grey image ``(height, width)`` as rows ``(n, side * side)``.

    Parameters
    ----------
    image
        Grey values.
    side
        Pixels of a side.
    places
        Upper left corners, counted row by row among the places where a patch fits; None for all places.
    remove_mean
        Subtract the mean of each patch.
    """
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side))
    if places is None:
        rows = windows.reshape(-1, side * side)
    else:
        rows = windows[np.unravel_index(places, windows.shape[:2])].reshape(-1, side * side)
    return rows - rows.mean(axis=1, keepdims=True) if remove_mean else np.array(rows)


def read_grey(file: Location) -> np.ndarray:
    """The grey values of an image, 0 to 1, ``(height, width)``; colours by their luma, transparency is ignored."""
    return _with_image(file, _grey)


def _grey(image: Image) -> np.ndarray:
    if image.mode == "F":
        return np.asarray(image, np.float64)
    if image.mode == "I" or image.mode.startswith("I;16"):
        return np.asarray(image, np.float64) / 65535.0
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"), np.float64) / 255.0
    return np.asarray(image.convert("RGB"), np.float64) @ LUMA / 255.0


def _with_image(file: Location, use: Callable[[Image], Any]) -> Any:
    """Result of ``use`` on the opened image; pixels are decoded only if it asks for them."""
    from PIL import Image

    with _patience(), file.open() as raw, Image.open(raw) as image:
        return use(image)


def _patience() -> AbstractContextManager[Any]:
    """Context that accepts scans larger than 90 megapixels; sizes that pillow refuses are still refused."""
    from PIL import Image

    return warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)


def _unreadable() -> tuple[type[Exception], ...]:
    """Errors that pillow raises for files that are damaged, cut short, too large or no images at all."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingError('images need pillow: pip install "bnp-dask[sklearn]"') from error
    return OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError


def _shuffled(pieces: Iterator[np.ndarray], rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The rows in random order: each is shuffled in a buffer of BUFFER_BYTES."""
    held: list[np.ndarray] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.nbytes
        if size >= BUFFER_BYTES:
            rows = rng.permutation(np.concatenate(held))
            stay = len(rows) // 2
            yield from _small(rows[stay:])
            held, size = [rows[:stay].copy()], rows[:stay].nbytes
    if held:
        yield from _small(rng.permutation(np.concatenate(held)))


def _small(rows: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, PIECE_BYTES // rows.itemsize // rows.shape[1])
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _room(shape: tuple[int, ...], side: int) -> int:
    return max(0, shape[0] - side + 1) * max(0, shape[1] - side + 1)


def _why(error: Exception) -> str:
    """The first line of an error, without the address of an open file."""
    text = str(error).split("\n")[0].split(" <")[0].strip()
    return text if text else type(error).__name__


def _few(bad: list[tuple[str, str]]) -> str:
    named = "; ".join(f"{name} ({why})" for name, why in bad[:NAMED])
    return named + (f"; and {len(bad) - NAMED:,} more" if len(bad) > NAMED else "")
