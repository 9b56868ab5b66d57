"""verl's own trainer (`verl.trainer.main_ppo`) on a CPU, with replies of random tokens instead of a rollout engine.

    python peer_main_ppo.py FOLDER MODEL key=value ...

FOLDER is for its data. The trainer prints verl's metrics, such as timing_s/update_actor."""

import asyncio
import os
import random
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "worker"), str(Path(__file__).parent)]
os.environ |= {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "hone_on_cpu.platform,hone_on_cpu.engines",
    "PYTHONPATH": os.pathsep.join(sys.path[:2]),
}

import pyarrow
import pyarrow.parquet
import ray
from omegaconf import OmegaConf
from transformers import AutoConfig
from verl.single_controller.ray import RayResourcePool
from verl.single_controller.ray.base import ResourcePoolManager
from verl.trainer.main_ppo import run_ppo
from verl.trainer.main_ppo_v0 import TaskRunner
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput


class Server:
    """Samples tokens at random, up to the length limit."""

    def __init__(self, vocabulary: int, length: int):
        self._vocabulary, self._length = vocabulary, length
        self._random = random.Random(0)

    async def generate(self, **_: Any) -> TokenOutput:
        tokens = [self._random.randrange(8, self._vocabulary) for _ in range(self._length)]
        return TokenOutput(token_ids=tokens, stop_reason="completed")

    async def wake_up(self, **_: Any) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        vocabulary = AutoConfig.from_pretrained(self.model_config.path).vocab_size
        self._server_handle = ray.remote(Server).remote(vocabulary, self.config.response_length)
        self.servers, self._server_address = [self._server_handle], f"random:{self.replica_rank}"


class Adapter(BaseRollout):
    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Generator, **_: Any) -> None:
        for _name, _value in weights:
            await asyncio.sleep(0)


RolloutReplicaRegistry.register("random", lambda: Replica)
_ROLLOUT_REGISTRY["random", "async"] = f"{__name__ if __name__ != '__main__' else Path(__file__).stem}.Adapter"


class Pools(ResourcePoolManager):
    def create_resource_pool(self) -> None:
        for name, processes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(processes, use_gpu=False, max_colocate_count=1)


class Runner(TaskRunner.__ray_metadata__.modified_class):
    def init_resource_pool_mgr(self, config: Any) -> Pools:
        super().init_resource_pool_mgr(config)
        return Pools({"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes}, self.mapping)


def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    return len(solution_str) % 7 / 7


def main(folder: Path, model: str, overrides: list[str]) -> None:
    from hone_verl.configuration import adapt_to_cpu, read_configuration

    prompt = [{"role": "user", "content": "word " * 20}]
    row = {"data_source": "random", "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": ""}}
    rows = pyarrow.Table.from_pylist([{**row, "extra_info": {"index": index}} for index in range(256)])
    pyarrow.parquet.write_table(rows, folder / "rows.parquet")
    own = OmegaConf.create(
        {
            "data": {
                "train_files": [str(folder / "rows.parquet")], "val_files": [str(folder / "rows.parquet")],
                "dataloader_num_workers": 0,
            },
            "actor_rollout_ref": {
                "model": {"path": model, "external_lib": Path(__file__).stem},
                "rollout": {
                    "name": "random", "tensor_model_parallel_size": 1, "free_cache_engine": False,
                    "agent": {"num_workers": 1},
                },
            },
            "ray_kwargs": {"ray_init": {"address": "local", "include_dashboard": False, "num_cpus": 12}},
            "algorithm": {"adv_estimator": "grpo"},
            "reward": {
                "num_workers": 1, "custom_reward_function": {"path": __file__, "name": "reward"},
            },
            "critic": {"model": {"path": model}},
            "trainer": {
                "nnodes": 1, "n_gpus_per_node": 2, "device": "cpu", "use_v1": False, "logger": ["console"], "val_before_train": False, "test_freq": -1,
                "save_freq": -1,
            },
        }
    )
    given = OmegaConf.merge(own, OmegaConf.from_dotlist(overrides))
    configuration = read_configuration(OmegaConf.to_container(given))
    adapt_to_cpu(configuration)
    run_ppo(configuration.tree, ray.remote(Runner))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
