"""Names of objects, used as paths are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Key:
    """An object of an object store, or all objects below a prefix; they need not exist.

    Parameters
    ----------
    url
        With protocol, without a slash at its end, such as ``"s3://bucket/run"``.
    """

    url: str

    def __truediv__(self, name: str) -> Key:
        return Key(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        return self.url

    @property
    def protocol(self) -> str:
        """Part before ``://``."""
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket; a store is opened once for all objects in it."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """Last part without its suffix."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> Key:
        """All before the last part."""
        return Key(self.url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Key:
        """The name with another suffix, or with one."""
        return Key(f"{self.parent.url}/{self.stem}{suffix}")

    def absolute(self) -> Key:
        """The name itself, which depends on no working directory."""
        return self
