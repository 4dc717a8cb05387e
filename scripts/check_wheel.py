"""Build the wheel, install it into an empty environment away from the checkout, and use it there.

What only a checkout has (data files left out of the wheel, an import of tests or scripts, recorded results) shows here
and nowhere else. The last line says "wheel ok", or what went wrong with exit status 1. The wheel is left in dist/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

INSIDE = """
import ematrace
from importlib import resources
from pathlib import Path

assert not Path(ematrace.__file__).is_relative_to({root!r}), f"imported from the checkout: {{ematrace.__file__}}"
from ematrace.grammar import load_grammar
from ematrace.ledger import load_claims
from ematrace.probes import RidgeProbe
from ematrace.spcn import SPCN

A = load_grammar("A")
train, test = A.sample(200, seed=0), A.sample(50, seed=1)
assert len(train) == 200 and all(len(s.words) == len(s.roles) > 0 for s in train), "load_grammar('A').sample"
assert len(load_claims()) == 50, f"{{len(load_claims())}} claims"
package = resources.files("ematrace")
missing = [name for name in {data!r} if not package.joinpath(name).is_file()]
assert not missing, f"not in the wheel: {{missing}}"

import numpy as np

model = SPCN(vocabulary=A.words).fit([s.words for s in train[:50]])
features = [np.concatenate(model.transform([s.words for s in part])) for part in (train[:50], test)]
assert features[0].shape[1] == 3072, features[0].shape
labels = [[role for s in part for role in s.roles] for part in (train[:50], test)]
accuracy = RidgeProbe(lam=0.01).fit(features[0], labels[0]).score(features[1], labels[1])
assert accuracy > 0.5, f"a ridge probe reads {{accuracy:.3f}} of the roles of unseen sentences, not half"
print(f"{{accuracy:.3f}}")
"""


class CheckFailed(Exception):
    """One line on what is wrong with the wheel."""


def run(command: list[str], cwd: Path, what: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("EMATRACE_", "PYTHONPATH", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise CheckFailed(f"{what}: exit status {done.returncode}: {lines[-1]}")
    return done.stdout


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise CheckFailed(problem)


def check(folder: Path, say: Callable[[str], None]) -> None:
    dist, away = folder / "dist", folder / "away"
    away.mkdir()
    say("building")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)], ROOT, "build")
    wheels = list(dist.glob("*.whl"))
    require(len(wheels) == 1, f"build left {len(wheels)} wheels")
    (ROOT / "dist").mkdir(exist_ok=True)
    shutil.copy(wheels[0], ROOT / "dist")

    say(f"installing {wheels[0].name} ({wheels[0].stat().st_size / 2**10:.0f} KiB)")
    venv.create(folder / "env", with_pip=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python, ematrace = str(scripts / "python"), str(scripts / "ematrace")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheels[0])], away, "pip install")

    say("running it")
    text = run([ematrace, "--help"], away, "ematrace --help")
    require("reproduce" in text and "ledger" in text, "ematrace --help does not name its commands")

    sources = ROOT / "src" / "ematrace"
    files = [f.relative_to(sources) for f in sources.rglob("*") if f.is_file()]
    data = sorted(f.as_posix() for f in files if "__pycache__" not in f.parts)
    accuracy = run([python, "-c", INSIDE.format(root=str(ROOT), data=data)], away, "grammar, claims, SPCN").strip()

    sizes = ["--tokens", "8192", "--sequences", "4", "--length", "128", "--vocab-size", "512"]
    run(
        [ematrace, "train", "--preset", "spen-tiny", "--data", "builtin", "--out", "run", *sizes],
        away,
        "ematrace train",
    )
    figures = json.loads(
        run([ematrace, "eval", "run", "--data", "builtin", "--max-tokens", "2000", "--json"], away, "eval")
    )
    uniform = figures["baselines"]["uniform"]["perplexity"]
    require(figures["perplexity"] < uniform, f"16 steps leave a perplexity of {figures['perplexity']:.0f}")

    rows = json.loads(run([ematrace, "ledger", "--json"], away, "ematrace ledger --json"))
    require(len(rows) == 50, f"ematrace ledger --json has {len(rows)} rows, not 50")
    require(all(not row["evidence"] for row in rows), "ematrace ledger finds evidence where there are no results")

    run([ematrace, "report", "--out", "page.html"], away, "ematrace report")
    page = (away / "page.html").read_text(encoding="utf-8")
    require(all(row["id"] in page for row in rows), "ematrace report leaves out claims")
    say(f"a probe on 50 sentences reads {accuracy} of the roles; the page has {len(page) / 2**10:.0f} KiB")


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="ematrace-wheel-") as folder:
            check(Path(folder), lambda line: print(line, flush=True))
    except CheckFailed as error:
        print(f"wheel broken: {error}")
        return 1
    print("wheel ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
