"""The processes of a run: one, or those that torchrun started."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ematrace.train.config import Parallel

# The first process reads and packs the text while the others wait.
PATIENCE = timedelta(hours=2)
COMPILE_OPTIONS = {"comprehensive_padding": False}
"""On GPUs inductor lengthens rows of more than 1,024 elements to a multiple of 128 bytes, and may read back what it
never wrote: issue 194281 of pytorch, fixed there by 192575, and probably the gradients of a GPT-2 whose feed-forward
layer has 3,368 units. Usual widths need no such padding."""


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and how many there are."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Rank 0, which displays and writes."""
        return self.rank == 0

    def gather(self, values: list[float]) -> list[list[float]]:
        """The lists of all processes, by rank; they have the same length."""
        if self.size == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine)
        return [theirs.tolist() for theirs in everyone]

    def wait(self) -> None:
        if self.size > 1:
            self.gather([0.0])

    def broadcast(self, value: Any) -> Any:
        """The first process's value (plain JSON data) in every process."""
        if self.size == 1:
            return value
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        length = torch.tensor([len(text)], device=self.device)
        dist.broadcast(length, src=0)
        if not self.first:
            text = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    def share(self, items: int, what: str, advice: str) -> range:
        """This process's contiguous part of `items` numbered things."""
        if items % self.size:
            raise ValueError(f"{self.size} processes cannot share {items} {what} evenly; {advice}")
        part = items // self.size
        return range(self.rank * part, (self.rank + 1) * part)


@contextmanager
def open_world(device: str) -> Iterator[World]:
    """Join the processes that torchrun started, or be the only one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    started = size > 1 and not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(rank, size, chosen)
    finally:
        if started:
            dist.destroy_process_group()


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """`auto` is a GPU where there is one; of several processes each has the GPU of its local rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is {name!r}, and this machine has no GPU that torch can use")
        index = local_rank if local_rank is not None else device.index or 0
        if index >= torch.cuda.device_count():
            raise ValueError(f"device cuda:{index}: this machine has {torch.cuda.device_count()} GPUs")
        return torch.device("cuda", index)
    return device


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's blocks: the modules of its longest list."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def distribute(loss: nn.Module, world: World, parallel: Parallel, *, bfloat16: bool, compiled: bool) -> nn.Module:
    """The loss module, compiled where asked, with its gradients averaged over processes."""
    if compiled:
        torch.compiler.reset()  # of earlier models in this process: from the eighth on, torch would give up compiling
    if parallel == "fsdp" and world.size > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # The blocks return views of their states, which nothing changes in place.
        warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
        mesh = init_device_mesh(world.device.type, (world.size,))
        half = torch.bfloat16 if bfloat16 else None
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if bfloat16 else None)
        for block in blocks_of(loss):
            if compiled:  # between the gathers of its weights and not across them
                block.compile(options=COMPILE_OPTIONS)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(loss, mesh=mesh, mp_policy=policy)
        return loss
    if compiled:
        loss.compile(options=COMPILE_OPTIONS)
    if world.size == 1:
        return loss
    from torch.nn.parallel import DistributedDataParallel

    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(loss, device_ids=devices, gradient_as_bucket_view=True)


def accumulating(wrapped: nn.Module, last: bool) -> Any:
    """A context for one of several backward passes: gradients are exchanged in the last one only."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(wrapped, FSDPModule):
        wrapped.set_requires_gradient_sync(last)
        return nullcontext()
    if isinstance(wrapped, nn.parallel.DistributedDataParallel) and not last:
        return wrapped.no_sync()
    return nullcontext()
