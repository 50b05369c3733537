"""Messages are opened by several threads of a worker that has imported nothing yet."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.machinery import PathFinder

from bnp_dask.execute.base import may_pass
from bnp_dask.execute.message import Message


class Slow:
    """Finder that keeps who imports the package waiting after it is locked and before others see it."""

    def __init__(self):
        self.asked, self.go_on = threading.Event(), threading.Event()

    def find_spec(self, name, path=None, target=None):
        if name != "circle":
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader.create_module = self._wait
        return spec

    def _wait(self, spec):
        self.asked.set()
        self.go_on.wait(0.5)


def test_one_thread_imports_a_package_and_another_a_module_that_the_package_imports(tmp_path, monkeypatch):
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle" / "__init__.py").write_text("from circle.part import found\n")
    (tmp_path / "circle" / "part.py").write_text("def found():\n    return 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("circle").found
    messages = []
    for name in ("circle", "circle.part"):
        monkeypatch.setattr(found, "__module__", name)
        messages.append(Message.of(found))
    for name in ("circle", "circle.part"):
        monkeypatch.delitem(sys.modules, name)
    slow, results = Slow(), []
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])

    def open_it(message):
        try:
            results.append(message.open()())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=open_it, args=[message]) for message in messages]
    threads[0].start()
    assert slow.asked.wait(30)
    threads[1].start()
    locks = importlib._bootstrap._module_locks
    while "circle.part" not in locks and threads[0].is_alive():  # the package waits no longer than half a second
        threading.Event().wait(0.01)
    threading.Event().wait(0.05)  # the module's import asks for its package
    slow.go_on.set()
    for thread in threads:
        thread.join(30)
    assert results == ["found", "found"]


def test_an_import_that_waited_for_another_thread_may_be_tried_again():
    error = importlib._bootstrap._DeadlockError("deadlock detected by _ModuleLock('circle.part')")
    assert may_pass(error)
    assert not may_pass(RuntimeError("deadlock detected"))
