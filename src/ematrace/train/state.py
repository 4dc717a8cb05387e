"""The state of a run to and from tensors and plain JSON: weights, AdamW's averages, random generators.

Sharded tensors are gathered by torch.distributed.checkpoint and written in the one layout that a single process writes:
a checkpoint of any number of processes can then be resumed by any other number, and its folder is a model that
`from_pretrained` reads. torch's sharded safetensors writer works too, but it writes every tensor twice, once for each
process and once merged; it would pay for models that do not fit into one machine's memory.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from ematrace.models import upgrade_names
from ematrace.train.checkpoints import OPTIMISER, DamagedCheckpoint, read_tensors, write_tensors
from ematrace.train.models import no_bars

Tensors = dict[str, Tensor]
AVERAGES = ("exp_avg", "exp_avg_sq")
_GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)


def model_tensors(model: nn.Module) -> Tensors:
    """Weights and buffers, a tied weight once. Collective; where they are sharded only the first process gets them."""
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    tensors: Any = model.state_dict() if not _is_sharded(model) else get_model_state_dict(model, options=_GATHERED)
    return {name: tensor.detach().cpu() for name, tensor in tensors.items() if name in once}


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> Tensors:
    """exp_avg.NAME, exp_avg_sq.NAME and the number of updates; collective, as above."""
    states: Any
    if _is_sharded(model):
        states = get_optimizer_state_dict(model, optimiser, options=_GATHERED).get("state", {})
    else:
        states = {name: optimiser.state.get(parameter) for name, parameter in model.named_parameters()}
    tensors: Tensors = {}
    for name, state in states.items():
        if state:  # a frozen or unused parameter has none
            tensors |= {f"{average}.{name}": state[average].detach().cpu() for average in AVERAGES}
            tensors["step"] = state["step"].detach().cpu().clone()
    return tensors


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def write_model(model: Any, tensors: Tensors, tokenizer: Any, folder: Path) -> None:
    """A folder that `from_pretrained` reads."""
    try:
        with no_bars():
            model.save_pretrained(folder, state_dict=tensors)
            tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # safetensors and tokenizers report a full disk with errors of their own classes
        raise OSError(f"{folder}: model not written: {' '.join(str(error).split())}") from error


def write_optimiser(tensors: Tensors, folder: Path) -> None:
    write_tensors(folder / OPTIMISER, tensors)


def check_tensors(model: nn.Module, folder: Path) -> None:
    """`DamagedCheckpoint` unless weights and averages in `folder` are finite and fit `model` in name and shape."""
    weights, averages = sorted(folder.glob("model*.safetensors")), [folder / OPTIMISER]
    for path in (*weights, *averages):
        for name, tensor in read_tensors([path]).items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise DamagedCheckpoint(f"{path}: tensor '{name}': not finite")
    _check_weights(model, upgrade_names(model, read_tensors(weights)), folder)
    _check_averages(model, _upgrade_averages(model, read_tensors(averages)), folder)


def read_model(model: nn.Module, folder: Path) -> None:
    """Weights of a whole (not yet sharded) model; a tied weight is written once. Names of earlier versions are read."""
    tensors = upgrade_names(model, read_tensors(sorted(folder.glob("model*.safetensors"))))
    _check_weights(model, tensors, folder)
    model.load_state_dict(tensors, strict=False)


def _check_weights(model: nn.Module, tensors: Tensors, folder: Path) -> None:
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, parameter in parameters.items():
        if name in tensors and tensors[name].shape != parameter.shape:
            shapes = f"{list(tensors[name].shape)} there, {list(parameter.shape)} in the model"
            raise DamagedCheckpoint(f"{folder}/model.safetensors: tensor '{name}': {shapes}")
    missing = [name for name, _ in model.named_parameters() if name not in tensors]
    unknown = [name for name in tensors if name not in model.state_dict()]
    if missing or unknown:
        problem = f"has no tensor '{missing[0]}'" if missing else f"has a tensor '{unknown[0]}' that the model lacks"
        raise DamagedCheckpoint(f"{folder}/model.safetensors: {problem}")


def read_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, folder: Path) -> None:
    """AdamW's averages for the model's parameters, each process its shard."""
    tensors = _upgrade_averages(model, read_tensors([folder / OPTIMISER]))
    _check_averages(model, tensors, folder)
    fused = any(group.get("fused") for group in optimiser.param_groups)
    for name, parameter in model.named_parameters():
        keys = {average: f"{average}.{name}" for average in AVERAGES}
        if any(key in tensors for key in keys.values()):
            optimiser.state[parameter] = {
                # A fused step keeps its count on the device.
                "step": tensors["step"].clone().to(parameter.device if fused else "cpu"),
                **{average: _like(tensors[key], parameter) for average, key in keys.items()},
            }


def _check_averages(model: nn.Module, tensors: Tensors, folder: Path) -> None:
    """A parameter that was never used has no averages, the others have both."""
    if "step" not in tensors or tensors["step"].numel() != 1:
        raise DamagedCheckpoint(f"{folder / OPTIMISER}: tensor 'step': missing or of another shape")
    for name, parameter in model.named_parameters():
        keys = [f"{average}.{name}" for average in AVERAGES]
        for key in keys if any(key in tensors for key in keys) else ():
            if key not in tensors or tensors[key].shape != parameter.shape:
                raise DamagedCheckpoint(f"{folder / OPTIMISER}: tensor '{key}': missing or of another shape")


def _upgrade_averages(model: nn.Module, tensors: Tensors) -> Tensors:
    """AVERAGE.NAME under today's names of the parameters."""
    upgraded: Tensors = {"step": tensors["step"]} if "step" in tensors else {}
    for average in AVERAGES:
        of_average = {n.removeprefix(f"{average}."): t for n, t in tensors.items() if n.startswith(f"{average}.")}
        upgraded |= {f"{average}.{name}": t for name, t in upgrade_names(model, of_average).items()}
    return upgraded


def _like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device and, where that is sharded, in its shards."""
    tensor = tensor.to(parameter.device)
    if isinstance(parameter, DTensor):
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor


def random_state(device: torch.device) -> dict[str, Any]:
    """The generators of torch, CUDA, numpy and Python, as hexadecimal text and lists."""
    version, numbers, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002  the global one is what is saved
    state: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [kind, np.asarray(keys).tolist(), place, has_gauss, cached],
        "python": [version, list(numbers), gauss],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return state


def check_random_state(state: Mapping[str, Any], where: Path) -> None:
    """`DamagedCheckpoint` unless the generators take it; they are left as they were."""
    before = random_state(torch.device("cpu"))
    try:
        restore_random_state(state, torch.device("cpu"))
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedCheckpoint(f"{where}: field 'random': {reason}") from error
    finally:
        restore_random_state(before, torch.device("cpu"))


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(_from_hex(state["torch"]))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, has_gauss, cached))  # noqa: NPY002
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_from_hex(state["cuda"]), device)


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def seed_everything(seed: int) -> None:
    """The same in all processes, so that they build the same model."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  for whatever a model draws from the global generator
    torch.manual_seed(seed)
