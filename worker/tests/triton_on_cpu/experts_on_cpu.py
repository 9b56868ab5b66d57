"""A plugin of vLLM for what its package for CPUs lacks for experts: it packs their weights only when it starts, not when they are
replaced, and it has no kernel for them next to adapters of other layers."""

from dataclasses import replace


def install() -> None:
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as module

    method = module.UnquantizedFusedMoEMethod
    set_up, select = method._setup_kernel, module.select_unquantized_moe_backend

    def set_up_again(self, *inputs, **arguments) -> None:
        self.moe_kernel = None  # As at the start.
        set_up(self, *inputs, **arguments)

    method._setup_kernel = set_up_again
    module.select_unquantized_moe_backend = lambda moe_config: select(replace(moe_config, is_lora_enabled=False))
