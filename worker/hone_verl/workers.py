"""The Ray actors: verl's Tinker-style workers, extended with staged batches.

verl's own calls send a whole batch each time. Here each batch is sent once and gets a number. Calls refer to this
number and send only one value per trained token."""

import dataclasses
import json
import math
import os
import resource
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from hone_worker.folders import write_json, write_tensors
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.core_model_loading import revert_weight_conversion
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.device import get_torch_device
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker, TinkerTrainingWorker

from .batches import Shard
from .whole_weights import drop_whole_weights

# verl's names of the outputs.
_NAMES = {"logprobs": "log_probs", "entropy": "entropy", "concentration": "sum_pi_squared", "values": "values"}

# The inputs of verl's own losses for each trained token.
LOSS_INPUTS = ("advantages", "old_logprobs")

# Names of the value head in models of transformers and trl.
_HEAD = {"score", "classifier", "v_head"}


def linear_loss(model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None) -> tuple[Tensor, dict]:
    """sum(gradient * output), whose gradient is the one that Hone sent. Multiplied by the number of ranks, because verl
    averages over ranks."""
    terms = [
        (model_output[_NAMES[name]].values() * data[f"gradient_{name}"].values()).sum()
        for name in _NAMES
        if f"gradient_{name}" in data
    ]
    return torch.stack(terms).sum() * data["dp_size"], {}


def native_loss(
    model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None, *, name: str, config: Any
) -> tuple[Tensor, dict]:
    """verl's registered loss `name` as a plain sum, because the advantages contain the weights of the tokens."""
    offsets = data["trained"].offsets()

    def rows(ragged: Tensor) -> Tensor:
        # A nested tensor of verl's micro-batches can have the maximum length of the whole batch.
        return torch.nested.nested_tensor_from_jagged(ragged.values(), offsets).to_padded_tensor(0.0)

    config.global_batch_info.update(dp_size=data["dp_size"], global_batch_size=1)
    loss, _ = get_policy_loss_fn(name)(
        old_log_prob=rows(data["old_logprobs"]) if "old_logprobs" in data else None,
        log_prob=rows(model_output["log_probs"]),
        advantages=rows(data["advantages"]),
        response_mask=rows(data["trained"]),
        loss_agg_mode="token-sum",
        config=config,
    )
    return loss, {}


def _begin(logs: str, role: str, seed: int) -> None:
    """Redirects this process's output to its own file, and prepares torch. `seed` makes the initial weights of adapters
    and value heads reproducible; verl itself does not seed them."""
    path = Path(logs) / f"{role}-{os.environ['RANK']}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    torch.manual_seed(seed)


class _Operations:
    """The methods that the driver calls. `_trainer()` returns verl's worker that holds the model."""

    def _trainer(self, reference: bool = False) -> TinkerTrainingWorker:
        raise NotImplementedError

    def stage(self, shard: Shard, batch: int) -> None:
        """Keeps this rank's part of a batch."""
        if not hasattr(self, "_staged"):
            self._staged: dict[int, Shard] = {}
        self._staged[batch] = shard

    def unstage(self, batch: int) -> None:
        self._staged.pop(batch, None)

    def outputs(self, batch: int, names: list[str], reference: str | None = None) -> dict[str, np.ndarray] | None:
        """Each output as f32 `[N]`. `reference`: "adapter" computes with the model without its adapter, "model" with
        verl's reference model. Ranks that do not have outputs return None."""
        shard = self._staged[batch]
        trainer = self._trainer(reference == "model")
        budget = _budget(trainer.engine_config.infer_max_token_len_per_gpu, shard)
        settings = {"compute_loss": False, **_wanted(names), **budget, "no_lora_adapter": reference == "adapter"}
        found = self._timed(trainer.infer_batch, _batch(trainer, shard, {}, settings))
        return None if found is None else _collect(found, shard, names)

    def backward(self, gradient: dict[str, np.ndarray], batch: int) -> None:
        """Adds the gradient of the outputs, f32 `[N]` each, to that of the weights."""
        trainer, shard = self._trainer(), self._staged[batch]
        trainer.set_loss_fn(linear_loss)
        tensors = {f"gradient_{name}": shard.spread(values) for name, values in gradient.items()}
        budget = _budget(trainer.engine_config.max_token_len_per_gpu, shard)
        self._timed(trainer.forward_backward, _batch(trainer, shard, tensors, {**_wanted(list(gradient)), **budget}))

    def zero_grad(self) -> None:
        self._trainer().optimizer_zero_grad()

    def step(self, settings: dict[str, float]) -> float:
        """Returns the norm of the gradient before clipping. verl drops a gradient that is not finite."""
        trainer = self._trainer()
        engine = trainer.engine
        clip = settings["max_grad_norm"] or math.inf
        engine.optimizer_config = dataclasses.replace(engine.optimizer_config, clip_grad=clip)
        for group in engine.optimizer.param_groups:
            # A configured 0 is an int, and verl refuses another type than the one held.
            group["weight_decay"] = float(group["weight_decay"])
        betas = engine.optimizer.param_groups[0]["betas"]
        drop_whole_weights(engine.module)
        found = self._timed(
            trainer.optimizer_step,
            {
                "lr": float(settings["learning_rate"]),
                "eps": float(settings["eps"]),
                "weight_decay": float(settings["weight_decay"]),
                "betas": type(betas)([settings["beta1"], settings["beta2"]]),
            },
        )
        return found.get("grad_norm", math.nan)

    def save(self, folder: str, optimizer: bool) -> None:
        """Writes verl's own checkpoint."""
        engine = self._trainer().engine
        manager = engine.checkpoint_manager
        contents = manager.checkpoint_save_contents
        manager.checkpoint_save_contents = _contents(contents, optimizer)
        try:
            engine.save_checkpoint(folder, None, 0, None)
        finally:
            manager.checkpoint_save_contents = contents

    def load(self, folder: str, optimizer: bool) -> None:
        """Loads verl's own checkpoint. Without `optimizer`, the optimizer starts with a new state."""
        engine = self._trainer().engine
        manager = engine.checkpoint_manager
        contents = manager.checkpoint_load_contents
        manager.checkpoint_load_contents = _contents(contents, optimizer)
        try:
            engine.load_checkpoint(folder, None, False)
        finally:
            manager.checkpoint_load_contents = contents
        if not optimizer:
            engine.optimizer.state.clear()
        engine.optimizer_zero_grad()

    def export(self, folder: str, kind: str) -> None:
        """Rank 0 writes the adapter in PEFT's format, or the merged model as a Hugging Face folder."""
        engine = self._trainer().engine
        peft = getattr(engine.module, "peft_config", {}).get("default")
        keep = torch.distributed.get_rank() == 0
        tensors = {}
        for name, tensor in engine.module.state_dict().items():
            if kind == "adapter" and "lora_" not in name:
                continue
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # every rank takes part
            if keep:
                tensors[name] = whole.detach().cpu()
        if keep and kind == "adapter":
            _write_adapter(Path(folder), tensors, peft)
        elif keep:
            module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
            of_files = module if peft is None else module.get_base_model()
            _write_model(Path(folder), revert_weight_conversion(of_files, _merged(tensors, peft)), self._trainer().model_config)

    def process(self) -> dict[str, Any]:
        """Process id and node of this rank."""
        return {"pid": os.getpid(), "address": ray.util.get_node_ip_address()}

    def facts(self) -> dict[str, Any]:
        """Data-parallel rank, numbers of parameters, and dtype of this rank."""
        engine = self._trainer().engine
        module = engine.module
        return {
            "data_rank": engine.get_data_parallel_rank(),
            "data_ranks": engine.get_data_parallel_size(),
            "parameters": sum(value.numel() for value in module.parameters()),
            "trainable": sum(value.numel() for value in module.parameters() if value.requires_grad),
            "dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
        }

    def seconds(self) -> float:
        """Seconds spent in verl's own calls so far."""
        return getattr(self, "_seconds", 0.0)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self._seconds = self.seconds() + time.perf_counter() - begin

    def memory(self) -> dict[str, int]:
        """Memory in bytes."""
        return {
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "device": get_torch_device().max_memory_allocated(),
        }


class PolicyWorker(_Operations, TinkerActorRolloutRefWorker):
    """The actor. After `add_reference`, the same process also holds verl's reference model. `role` is verl's name of
    the role; with `actor_rollout`, the worker also sends weights to the rollout server on its GPU."""

    def __init__(self, config: DictConfig, logs: str, seed: int, role: str):
        _begin(logs, "actor", seed)
        super().__init__(config=config, role=role)

    def _trainer(self, reference: bool = False) -> TinkerTrainingWorker:
        return self.ref if reference else self.actor

    def native_backward(
        self, inputs: dict[str, np.ndarray], batch: int, name: str, settings: dict[str, Any]
    ) -> dict[str, np.ndarray] | None:
        """Adds the gradient of verl's own loss `name`; `settings` replace those of `actor_rollout_ref.actor`. Returns
        the log-probabilities like `outputs`."""
        trainer, shard = self._trainer(), self._staged[batch]
        trainer.set_loss_fn(partial(native_loss, name=name, config=_replaced(self._actor_loss_config, settings)))
        trained = np.ones(len(shard.places), np.float32)
        tensors = {key: shard.spread(values) for key, values in {**inputs, "trained": trained}.items()}
        budget = _budget(trainer.engine_config.max_token_len_per_gpu, shard)
        found = self._timed(trainer.forward_backward, _batch(trainer, shard, tensors, {**_wanted([]), **budget}))
        return None if found is None else _collect(found, shard, ["logprobs"])

    def restart(self, model: dict[str, Any], seed: int) -> None:
        """Builds a new actor. `model`: changes to verl's section `model`, such as the rank of the adapter."""
        with open_dict(self.config):
            self.config.model.update(model)
        torch.manual_seed(seed)
        self.init_model()

    def set_dispatch_collect(self, mesh_name: str, **ranks: Any) -> None:
        # A new model uses the same dispatch names as the first one, and verl refuses to register a name twice.
        if mesh_name not in self.get_dispatch_collect()["dispatch_dp_rank"]:
            super().set_dispatch_collect(mesh_name, **ranks)

    def add_reference(self) -> None:
        if self.ref is not None:
            return
        role, self.role = self.role, "ref"  # verl builds the model for this role
        try:
            self.init_model()
        finally:
            self.role = role

    def held(self) -> dict[str, Any]:
        """The configuration of this worker. Its `actor` section is the one that verl's losses read."""
        trainer = self.actor
        actor = _plain(self._actor_loss_config)
        engine = type(self._actor_loss_config.engine).__name__
        tree = OmegaConf.to_container(self.config, resolve=True)
        tree["actor"] |= {**actor, "optim": _plain(trainer.optimizer_config)}
        if engine.startswith("FSDP"):
            tree["actor"]["fsdp_config"] = _plain(trainer.engine_config)
        return {"actor_rollout_ref": tree}

    @property
    def _actor_loss_config(self) -> Any:
        return self.loss_fn.keywords["config"]


class CriticWorker(_Operations, TinkerTrainingWorker):
    """The critic: verl's value model."""

    def __init__(self, config: Any, logs: str, seed: int):
        _begin(logs, "critic", seed)
        super().__init__(config=config)

    def _trainer(self, reference: bool = False) -> TinkerTrainingWorker:
        return self

    def restart(self, seed: int) -> None:
        """Builds a new critic. Its values start at 0; verl's own value head would start with random weights."""
        torch.manual_seed(seed)
        self.reset()
        with torch.no_grad():
            for name, weight in self.engine.module.named_parameters():
                if _HEAD & set(name.split(".")):
                    weight.zero_()

    def held(self) -> dict[str, Any]:
        """verl's sections for the critic, by their path in the whole configuration."""
        engine = _plain(self.engine_config)
        names = ("strategy", "use_dynamic_bsz", "ulysses_sequence_parallel_size")
        renamed = {
            "ppo_micro_batch_size_per_gpu": "micro_batch_size_per_gpu",
            "ppo_max_token_len_per_gpu": "max_token_len_per_gpu",
            "ppo_infer_max_token_len_per_gpu": "infer_max_token_len_per_gpu",
        }
        critic = {
            "optim": _plain(self.optimizer_config),
            "fsdp": engine,
            "model": _plain(self.model_config),
            "checkpoint": _plain(self.checkpoint_config),
            **{name: engine[name] for name in names if name in engine},
            **{name: engine[given] for name, given in renamed.items() if given in engine},
        }
        return {"critic": critic}


def _batch(
    trainer: TinkerTrainingWorker, shard: Shard, tensors: dict[str, Tensor], settings: dict[str, Any]
) -> TensorDict:
    trainer.engine.images = shard.images
    return shard.batch(tensors, **settings)


def _wanted(names: list[str]) -> dict[str, bool]:
    return {
        "calculate_entropy": "entropy" in names,
        "calculate_sum_pi_squared": "concentration" in names,
    }


def _budget(tokens: int | None, shard: Shard) -> dict[str, int]:
    """verl refuses sequences that exceed the token budget of a micro-batch, so the budget is at least the longest one."""
    return {"max_token_len_per_gpu": max(tokens or 0, shard.longest)}


def _collect(found: TensorDict, shard: Shard, names: list[str]) -> dict[str, np.ndarray]:
    places = torch.tensor(shard.places)
    return {name: found[_NAMES[name]].values().reshape(-1)[places].float().numpy() for name in names}


def _replaced(config: Any, settings: dict[str, Any]) -> Any:
    """A copy of verl's dataclass with other settings; those of its sections are dictionaries."""
    sections = {key: _replaced(getattr(config, key), value) for key, value in settings.items() if isinstance(value, dict)}
    return dataclasses.replace(config, **{**settings, **sections})


def _contents(contents: list[str], optimizer: bool) -> list[str]:
    return [name for name in contents if optimizer or name != "optimizer"]


def _plain(config: Any) -> Any:
    """A dataclass of verl as JSON. Values that JSON does not support become text."""
    if dataclasses.is_dataclass(config):
        return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {str(key): _plain(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [_plain(value) for value in config]
    return config if isinstance(config, (str, int, float, bool, type(None))) else str(config)


def _write_adapter(folder: Path, tensors: dict[str, Tensor], peft: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(
        folder / "adapter_model.safetensors",
        {name.replace(".default.", "."): value for name, value in tensors.items()},
    )
    peft.save_pretrained(str(folder))
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text())
    write_json(path, {**settings, "inference_mode": True})


def _merged(tensors: dict[str, Tensor], peft: Any) -> dict[str, Tensor]:
    """The weights with the adapter merged into them."""
    merged = {}
    for name, value in tensors.items():
        if "lora_" in name:
            continue
        module = name.removesuffix(".base_layer.weight")
        if module != name:
            scale = peft.lora_alpha / (math.sqrt(peft.r) if peft.use_rslora else peft.r)
            down, up = (tensors[f"{module}.lora_{part}.default.weight"] for part in "AB")
            value = value + scale * (up.to(value.dtype) @ down.to(value.dtype))
        merged[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = value
    return merged


def _write_model(folder: Path, tensors: dict[str, Tensor], model_config: Any) -> None:
    """`tensors`: by their names in files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model_config.hf_config
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    dtype = config.dtype or torch.float32
    write_tensors(folder / "model.safetensors", {name: value.to(dtype) for name, value in tensors.items()})
    config.save_pretrained(folder)
    if model_config.generation_config is not None:
        model_config.generation_config.save_pretrained(folder)
    model_config.get_processor().save_pretrained(folder)
    for path in Path(model_config.local_path).glob("*processor_config.json"):
        shutil.copyfile(path, folder / path.name)
