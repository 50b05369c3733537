"""``python -m conformance [--adapter NAME ...] [--cases NAME ...] [--lines FILE] [--page [FILE]]``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from conformance.cases import FOLDER, load_cases
from conformance.page import write_page
from conformance.runner import ABSENT, PASSES, Outcome, adapter_named, names, run, summary

PAGE = Path("docs") / "conformance.md"


def one(args: argparse.Namespace) -> int:
    """Run one adapter in this process."""
    (name,) = args.adapter
    adapter = adapter_named(name)
    version = metadata.version(adapter.library)
    with open(args.lines or os.devnull, "a", encoding="utf-8") as lines:

        def tell(outcome: Outcome) -> None:
            line = {"library": adapter.library, "version": version, **outcome.as_dict()}
            print(json.dumps(line), file=lines, flush=True)

        found = run(name, adapter, load_cases(args.folder, args.cases), tell)
    print(f"{name} ({adapter.library} {version}): {summary(found)}")
    for outcome in found:
        if outcome.status not in (PASSES, ABSENT):
            print(f"  {outcome.case}, {outcome.quantity}: {outcome.status}: {outcome.told}")
    return int(adapter.claims and any(o.status not in (PASSES, ABSENT) for o in found))


def main() -> int:
    """Run adapters, each in a process of its own; the exit code is 1 if a library that claims to pass does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", nargs="*", help="NAME, or package.module; all that are installed if none")
    parser.add_argument("--cases", nargs="*", default=[], help="names of cases or kinds")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="cases of your own")
    parser.add_argument("--lines", type=Path, help="append outcomes to a file, one JSON line each")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="?",
        const=PAGE,
        help=f"write a page of Markdown, or its part between comments; {PAGE} if no file is named",
    )
    args = parser.parse_args()
    if args.adapter is not None and len(args.adapter) == 1 and not args.page:
        return one(args)
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        lines = args.lines or Path(folder) / "lines.jsonl"
        # with --adapter and no name, the page is made of lines that are there
        for name in names() if args.adapter is None else args.adapter:
            try:
                adapter_named(name)
            except (ImportError, metadata.PackageNotFoundError):
                print(f"{name}: not installed", file=sys.stderr)
                continue
            command = [sys.executable, "-m", "conformance", "--adapter", name, "--lines", str(lines)]
            command += ["--folder", str(args.folder), *(["--cases", *args.cases] if args.cases else [])]
            codes.append(subprocess.run(command, check=False).returncode)
        if args.page:
            told = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
            write_page(args.page, told, load_cases(args.folder))
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
