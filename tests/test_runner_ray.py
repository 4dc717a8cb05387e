"""Ray as the engine: a cluster of two machines (processes of this one, on localhost), one of which dies half-way."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner_support import executions, files_in, write_own

# Only the processes of the tests import it, which takes half a second.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")]

# In a process of its own: Ray takes signals, threads and environment variables of the process it is started in.
KILL_A_NODE = """
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from ematrace.experiments.runner import Request, make_plan, run

here = {"include_dashboard": False, "node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **here})
other = cluster.add_node(num_cpus=1, **{k: v for k, v in here.items() if k != "include_dashboard"})
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
request = Request(("./squares.py",), seeds=3, out=Path("out"), engine="ray", settings=("sleep=0.3",))
done = []


def written(unit, path):
    done.append(unit)
    if len(done) == 2:
        cluster.remove_node(other, allow_graceful=False)
        print("killed after", *(f"{u.factors['width']}-{u.seed}" for u in done), flush=True)


failed = run(make_plan(request).to_run, request.out, engine="ray", written=written)
print(len(done), {unit.label: why for unit, why in failed.items()}, flush=True)
ray.shutdown()
cluster.shutdown()
"""

LISTENERS = """
from contextlib import suppress
from pathlib import Path

import psutil

from ematrace.experiments.runner import Request, make_plan, run

request = Request(("./squares.py",), out=Path("out"), engine="ray")


def written(unit, path):
    family, sockets = [psutil.Process(), *psutil.Process().children(recursive=True)], []
    for process in family:
        with suppress(psutil.NoSuchProcess):
            sockets += [c for c in process.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    print(sorted({c.laddr.ip.removeprefix("::ffff:") for c in sockets}), flush=True)


print(list(run(make_plan(request).to_run, request.out, engine="ray", written=written).values()))
"""


def python(code: str, folder: Path, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    # Without this, Ray resolves 127.0.0.1 to the address that other machines see.
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds,
        check=False,
    )  # fmt: skip


def test_a_machine_that_dies_half_way_loses_nothing_and_repeats_nothing(tmp_path):
    """Six units, each in a job of its own; the second that is done ends one of the two machines."""
    write_own(tmp_path)
    done = python(KILL_A_NODE, tmp_path)
    assert done.returncode == 0, done.stderr
    (killed,) = [line for line in done.stdout.splitlines() if line.startswith("killed")]
    assert "6 {}" in done.stdout.splitlines()
    files = files_in(tmp_path / "out")
    assert len(files) == 6
    assert all(f.cells[0].metrics["area"].value == f.factors["width"] ** 2 + f.seed for f in files.values())
    begun = {name: n for name, n in executions(tmp_path).items() if not name.startswith("shared")}
    assert set(begun) == {f"{width} {seed}" for width in (2, 3) for seed in range(3)}
    before = [name.replace("-", " ") for name in killed.split()[2:4]]  # Ray may write into the same line
    assert [begun[name] for name in before] == [1, 1]
    # Of the others, only the one that was under way on the dead machine may have begun twice.
    assert sum(begun.values()) <= 7


def test_a_failed_unit_is_not_tried_again_and_ray_listens_to_this_machine_only(tmp_path):
    write_own(tmp_path, widths="[2, 13, 3]")
    done = python(LISTENERS, tmp_path)
    assert done.returncode == 0, done.stderr
    *addresses, failed = filter(None, done.stdout.splitlines())
    assert set(addresses) == {"['127.0.0.1']"}
    assert failed.startswith("['ZeroDivisionError: thirteen is refused")
    assert len(files_in(tmp_path / "out")) == 2
    assert executions(tmp_path)["13 0"] == 1
