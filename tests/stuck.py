"""What the clusters of a session do at the end of a test that ran into its limit of time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from weakref import WeakSet

from distributed import Client

SECONDS = 20.0
"""How long clusters may take to answer, together."""

CLIENTS: WeakSet[Client] = WeakSet()
"""Clients whose clusters are described."""


def described() -> str:
    """Tasks that are not done, with their workers, and the calls that workers are in."""
    lines: list[str] = []
    thread = threading.Thread(target=_describe, args=(lines,), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return "\n".join(lines) if lines else "no cluster is open"


def _describe(lines: list[str]) -> None:
    for client in list(CLIENTS):
        try:
            lines.extend(_about(client))
        except Exception as error:
            lines.append(f"{client} cannot be described: {error!r}")


def _about(client: Client) -> Iterator[str]:
    yield f"{client}: {client.status}"
    for task in list(client.cluster.scheduler.tasks.values()):
        if task.state != "memory":
            waits = [needed.key for needed in task.waiting_on or ()]
            yield f"  {task.key}: {task.state} on {task.processing_on}, waits for {waits}"
    yield json.dumps(client.call_stack(), indent=1, default=str)
