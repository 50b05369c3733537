"""Compiled kernels lie with the user: they outlive an installation, and are never those of other sources."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core.caching import CacheImpl

from bnp_dask.kernels.options import cache_folder, compiler_stamp, n_kept, njit, sources_digest

PACKAGE = Path(__file__).resolve().parents[2] / "bnp_dask"

INNER = """
from bnp_dask.kernels.options import njit

@njit(cache=True)
def inner(x):
    return x + 1.0
"""

OUTER = """
from bnp_dask.kernels.options import njit
from bnp_dask.kernels.numeric.inner import inner

@njit(cache=True)
def outer(x):
    return 2.0 * inner(x)
"""

CALL = """
import json
from bnp_dask.kernels.numeric.outer import outer
value = outer(3.0)
print(json.dumps([value, sum(outer.stats.cache_hits.values()), outer.stats.cache_path]))
"""


def install(site: Path, inner: str = INNER) -> None:
    """The kernels of the package, and two more that a test may change, as pip would put them."""
    shutil.rmtree(site, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "kernels", site / "bnp_dask" / "kernels", ignore=without)
    for file in PACKAGE.glob("*.py*"):
        shutil.copy(file, site / "bnp_dask")
    (site / "bnp_dask" / "kernels" / "numeric" / "inner.py").write_text(inner)
    (site / "bnp_dask" / "kernels" / "numeric" / "outer.py").write_text(OUTER)


def call(site: Path, home: Path, **more: str) -> tuple[float, int, str]:
    """Value of the kernel in a new process, whether it was there, and where it lies."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    settings = {**kept, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(home), "LOCALAPPDATA": str(home), **more}
    done = subprocess.run([sys.executable, "-c", CALL], env=settings, cwd=site, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "darwin", reason="a folder for caches that no variable names")
def test_kernels_outlive_an_upgrade_and_follow_what_they_call(tmp_path):
    site, home = tmp_path / "site-packages", tmp_path / "caches"
    install(site)
    value, n_found, place = call(site, home)
    assert (value, n_found) == (8.0, 0)
    assert Path(place).is_relative_to(home / "bnp_dask")
    assert not list(site.rglob("*.nb?"))  # wheels and environments carry nothing that was compiled

    install(site)  # another version with the same kernels
    assert call(site, home) == (8.0, 1, place)

    install(site, INNER.replace("1.0", "2.0"))  # one of whose files changed: another than that of the kernel called
    value, n_found, other = call(site, home)
    assert (value, n_found) == (10.0, 0)
    assert other != place

    install(site)  # and back
    assert call(site, home) == (8.0, 1, place)


@pytest.mark.parametrize(
    ("file", "follows"),
    [("inner", True), ("outer", True), ("../options", True), ("quantiles", False), ("../gaussian/quadratic", False)],
)
def test_the_folder_is_named_after_all_sources_that_a_kernel_may_call(tmp_path, monkeypatch, file, follows):
    install(tmp_path)
    numeric = tmp_path / "bnp_dask" / "kernels" / "numeric"
    monkeypatch.setattr("bnp_dask.kernels.options._KERNELS", numeric.parent)
    sources_digest.cache_clear()
    before = sources_digest(numeric / "outer.py")
    with (numeric / f"{file}.py").open("a") as out:
        out.write("# more\n")
    sources_digest.cache_clear()
    try:
        assert (sources_digest(numeric / "outer.py") != before) == follows
    finally:
        sources_digest.cache_clear()


@pytest.mark.long
@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="homes and temporary files that no variable names")
def test_processes_share_kernels_where_the_home_is_read_only(tmp_path):
    site, home, temporary = tmp_path / "site-packages", tmp_path / "a file" / "caches", tmp_path / "temporary"
    home.parent.touch()  # root may write to any folder
    temporary.mkdir()
    install(site)
    value, n_found, place = call(site, home, TMPDIR=str(temporary))
    assert (value, n_found) == (8.0, 0)
    assert Path(place).is_relative_to(temporary / f"bnp_dask-{os.getuid()}")
    assert not list(site.rglob("*.nb?"))
    assert call(site, home, TMPDIR=str(temporary)) == (8.0, 1, place)


@pytest.mark.skipif(sys.platform == "win32", reason="folders for temporary files are each user's own")
def test_kernels_are_not_taken_from_a_folder_that_others_may_write_to(tmp_path, monkeypatch):
    folder = tmp_path / f"bnp_dask-{os.getuid()}"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "a file" / "caches"))
    (tmp_path / "a file").touch()
    cache_folder.cache_clear()
    try:
        assert cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700
        cache_folder.cache_clear()
        folder.chmod(0o777)
        assert cache_folder() is None
        cache_folder.cache_clear()
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        assert cache_folder() is None
    finally:
        monkeypatch.undo()
        cache_folder.cache_clear()


def test_where_nothing_can_be_written_kernels_are_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    @njit(cache=True)
    def twice(x):
        return 2 * x

    assert twice(3) == 6


def test_kernels_are_compiled_for_types_and_not_for_constants():
    @njit()
    def scaled(x, by, turn):
        return -by * x if turn else by * x

    @njit()
    def some(x, by):
        return scaled(x, 2, True) + scaled(x, 3, turn=False) + scaled(x, by, True)

    assert some(1.5, 5) == 1.5 * (-2 + 3 - 5)
    assert scaled.signatures == [(numba.float64, numba.int64, numba.boolean)]


def test_kernels_that_are_kept_are_counted_from_a_time_on(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    cache_folder.cache_clear()
    try:
        for i, name in enumerate(["old.nbc", "new.nbc", "new.nbi"]):
            path = cache_folder() / "of some sources" / name
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.utime(path, (100 * i, 100 * i))
        assert [n_kept(since) for since in (0.0, 50.0, 150.0)] == [2, 1, 0]
    finally:
        monkeypatch.undo()
        cache_folder.cache_clear()


def test_the_folder_of_numba_goes_first(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    cache_folder.cache_clear()
    try:
        assert cache_folder() == tmp_path / "bnp_dask"
    finally:
        monkeypatch.undo()
        cache_folder.cache_clear()


def test_the_stamp_of_the_compiler_names_its_version():
    assert compiler_stamp().startswith(numba.__version__)
    assert compiler_stamp() == compiler_stamp()


def test_every_kernel_that_is_kept_lies_in_the_folder_of_its_sources():
    """Numba's own decorator would keep it beside its file, and old code of the kernels that it calls with it."""
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "options.py"]
    own = [path.relative_to(PACKAGE).as_posix() for path in files if "from numba import njit" in path.read_text()]
    assert own == []


@pytest.mark.parametrize("cache", [False, True])
def test_where_numba_compiles_nothing_kernels_are_python(monkeypatch, cache):
    """As with ``NUMBA_DISABLE_JIT=1``, for debuggers: the function itself."""

    def double(x):
        return 2 * x

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert njit(nogil=True, cache=cache)(double) is double
