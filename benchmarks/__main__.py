"""``python -m benchmarks peers [--quick]``: this package beside other libraries, in one run; see ``peers.py``."""

from __future__ import annotations

import sys

from benchmarks import peers


def main() -> None:
    """Run what the first argument names."""
    if sys.argv[1:2] != ["peers"]:
        raise SystemExit("python -m benchmarks peers [--quick] [--page FILE]; other benchmarks: docs/benchmarks.md")
    peers.main(sys.argv[2:])


if __name__ == "__main__":
    main()
