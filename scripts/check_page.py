"""Measures the report in a real browser with Lighthouse and axe: `make test-browser`.

It needs any Chromium (CHROMIUM names one that is not on the path), Node and npm, which fetches the packages of
browser/package.json once. Where one of these is missing it says so in a line and ends well: `make test` needs none.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "scripts" / "browser"
PLACE = ROOT / "build" / "browser"  # not in the repository: packages, the page and screenshots of it
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MOST_BYTES = 1_500_000
LEAST_PERFORMANCE = 80
ACCESSIBILITY = 100


class Quiet(SimpleHTTPRequestHandler):
    """The page over HTTP, not compressed: Lighthouse opens no files."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # browsers ask for it
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()


def main() -> int:
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if browser is None or missing:
        print(f"skipped: no {' and no '.join([*([] if browser else ['Chromium']), *missing])} on this machine")
        return 0
    if not install():
        print("skipped: npm could not install the packages of scripts/browser/package.json")
        return 0
    page = PLACE / "report.html"
    subprocess.run([sys.executable, "-m", "ematrace", "report", "--out", str(page)], check=True, cwd=ROOT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(PLACE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{page.name}"
        command = ["node", "measure.mjs", url, browser, str(PLACE)]
        run = subprocess.run(command, cwd=PLACE, stdout=subprocess.PIPE, text=True, timeout=900)
        server.shutdown()
    if run.returncode:
        print("failed: the browser could not be measured with")
        return 1
    problems = judge(json.loads(run.stdout.splitlines()[-1]), page.stat().st_size)
    for problem in problems:
        print(f"failed: {problem}")
    print(f"screenshots: {PLACE.relative_to(ROOT)}/first-390.png, whole-390.png, first-1280.png, whole-1280.png")
    return 1 if problems else 0


def install() -> bool:
    """The packages, once for each package.json."""
    PLACE.mkdir(parents=True, exist_ok=True)
    wanted, there = (SOURCE / "package.json").read_text(), PLACE / "package.json"
    shutil.copy(SOURCE / "measure.mjs", PLACE)
    if there.is_file() and there.read_text() == wanted and (PLACE / "node_modules" / "lighthouse").is_dir():
        return True
    shutil.copy(SOURCE / "package.json", there)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(command, cwd=PLACE).returncode == 0
    if not done:
        there.unlink()
    return done


def judge(measured: dict[str, Any], size: int) -> list[str]:
    """Prints what was measured; returns what is not good enough."""
    performance = statistics.median(run["performance"] for run in measured["runs"])
    accessibility = min(run["accessibility"] for run in measured["runs"])
    print(f"size {size:,} bytes")
    for run in measured["runs"]:
        timings = ", ".join(f"{name} {text}" for name, text in run["timings"].items()).replace("\xa0", " ")
        print(f"Lighthouse, mobile: performance {run['performance']}, accessibility {run['accessibility']} ({timings})")
    problems = [f"Lighthouse: {title}" for title in dict.fromkeys(t for run in measured["runs"] for t in run["failed"])]
    for width, found in measured["widths"].items():
        print(f"{width} px: {found['screens']:.1f} screens, {len(found['violations'])} axe violations")
        problems += [f"axe at {width} px: {violation}" for violation in found["violations"]]
        problems += [f"error at {width} px: {error}" for error in found["errors"]]
        if found["sideways"]:
            problems.append(f"the page scrolls sideways at {width} px: {found['beyond']}")
    problems += [f"the verdict table: {name} does not hold" for name, holds in measured["table"].items() if not holds]
    if size > MOST_BYTES:
        problems.append(f"{size:,} bytes are more than {MOST_BYTES:,}")
    if performance < LEAST_PERFORMANCE:
        problems.append(f"performance {performance:.0f} is below {LEAST_PERFORMANCE}")
    if accessibility < ACCESSIBILITY:
        problems.append(f"accessibility {accessibility} is below {ACCESSIBILITY}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
