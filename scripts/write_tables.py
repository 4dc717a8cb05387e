"""Writes the tables and the picture of docs/ and README.md that recorded cells decide; the rest is written by hand.

python scripts/write_tables.py                       # rewrites every marked table, says which pages changed
python scripts/write_tables.py --check               # exit code 1 if one is not what the cells say
python scripts/write_tables.py --results FOLDER      # from other cells than those in results/
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from doc_tables import chain_picture, changed_blocks, rewrite
from ematrace.files import write_atomically
from ematrace.report.data import ReportData
from ematrace.results import Store

ROOT = Path(__file__).resolve().parent.parent
GAP = ("gap-gradient.md", "gap-predictors.md", "gap-recall.md", "gap-content.md", "gap-runs.md")
PAGES = ("results.md", "objections.md", "deviations.md", "gap.md", *GAP, "training.md", "../README.md")
PICTURE = "gap-chain.svg"


def load(results: Path) -> ReportData:
    """The recorded cells of a folder; those that this machine made beside them are not published."""
    return ReportData.load(Store.open(recorded=results, local=results / "none"))


def stale(data: ReportData, docs: Path) -> dict[Path, str]:
    """The pages that are not what the cells say, and what they should be."""
    found = {}
    for name in PAGES:
        page = docs / name
        text = page.read_text(encoding="utf-8")
        if (written := rewrite(text, data, name)) != text:
            found[page] = written
    picture, drawn = docs / PICTURE, chain_picture(data)
    if not picture.exists() or picture.read_text(encoding="utf-8") != drawn:
        found[picture] = drawn
    return found


def _what(page: Path, text: str) -> str:
    """The page and, but for the picture, its blocks that are not what they should be."""
    blocks = [] if page.name == PICTURE else changed_blocks(page.read_text(encoding="utf-8"), text)
    return ": ".join([str(page), *([", ".join(blocks)] if blocks else [])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of result files")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    arguments = parser.parse_args()
    try:
        pages = stale(load(arguments.results), arguments.docs)
        for page, text in pages.items():
            if arguments.check:
                print(f"{_what(page, text)}: not what the cells say; run scripts/write_tables.py", file=sys.stderr)
            else:
                write_atomically(page, text.encode())
                print(f"{page}: written")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return int(arguments.check and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
