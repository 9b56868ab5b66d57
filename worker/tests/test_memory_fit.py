"""What is chosen and refused before a model is loaded."""

import pytest
import torch
from hone_sharded.memory import measure_shared
from hone_worker import memory_fit
from hone_worker.errors import UserMistake
from hone_worker.memory_fit import choose
from hone_worker.memory_plan import Measure, Parts, Sharing, Training, measure
from hone_worker.models.plain_model import ModelSource
from transformers import AutoConfig

LORA = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["attn", "mlp"], "seed": 1}
FULL = {"kind": "full"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The configuration of a model in the shape of Qwen2.5-1.5B, without weights."""
    found = tmp_path_factory.mktemp("model")
    sizes = dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2)
    AutoConfig.for_model("qwen2", vocab_size=151936, tie_word_embeddings=True, **sizes).save_pretrained(found)
    return found


KNOWN: dict[tuple[str, str], Parts] = {}


def remembered(measured: Measure) -> Measure:
    """The tests ask for the same plans again and again."""

    def once(config, training):
        key = (measured.__name__, str(training))
        if key not in KNOWN:
            KNOWN[key] = measured(config, training)
        return KNOWN[key]

    return once


@pytest.fixture
def on(folder, monkeypatch):
    """`choose` for a device with this memory in GB."""

    def chosen(
        gigabytes: float, adapter: dict, device="cuda", dtype=torch.bfloat16, checkpointing="auto", measured=measure, sharing=None, **plan
    ):
        monkeypatch.setattr(memory_fit, "available_bytes", lambda _: int(gigabytes * 1e9))
        monkeypatch.setattr(memory_fit, "total_bytes", lambda _: int(gigabytes * 1e9))
        source = ModelSource(folder, "qwen", torch.device(device), dtype, False)
        plan = {"adapter": adapter, "tokens": 4096, "rows": 0, "server_share": 0, **plan}
        load = {"plan": plan, "gradient_checkpointing": checkpointing, "micro_batch_tokens": 0, "chunk_size": 256, "cache_dir": folder}
        return choose(source, load, remembered(measured), sharing)

    return chosen


def test_the_fastest_way_that_fits_is_chosen(on):
    ways = {}
    for size in (80, 16.5, 8, 6):
        found = on(size, LORA).training
        ways[size] = (found.checkpointing, found.merged)
    assert ways == {80: (False, True), 16.5: (False, False), 8: (True, True), 6: (True, False)}
    assert "recomputed in the backward pass" in on(8, LORA).report(0)["text"]
    assert "without a merged copy" in on(6, LORA).report(0)["text"]
    assert on(80, LORA, checkpointing=True).training.checkpointing


def test_what_cannot_fit_is_refused_with_settings_that_fit(on):
    with pytest.raises(UserMistake, match="qwen does not fit: training it needs about 2.* of 24.0 GB free on cuda") as refused:
        on(24, FULL)
    assert refused.value.hint == "it fits with training.optimizer=adamw_8bit"
    with pytest.raises(UserMistake) as refused:
        on(12, FULL)
    assert refused.value.hint == "it fits with model.lora_rank=16"
    with pytest.raises(UserMistake) as refused:
        on(12, FULL, tokens=8192, server_share=0.5, checkpointing=False)
    settings = refused.value.hint.removeprefix("it fits with ").split()
    assert 0 < len(settings) <= 3 and "model.lora_rank=16" in settings
    with pytest.raises(UserMistake) as refused:
        on(2, LORA)
    assert "use a smaller model" in refused.value.hint


def test_a_cpu_refuses_only_what_is_certain(on):
    found = on(10, LORA, device="cpu", dtype=torch.float32, tokens=32768)
    assert not found.report(8)["fits"] and "cache" in found.report(8)["text"]
    with pytest.raises(UserMistake, match="does not fit"):
        on(10, FULL, device="cpu", dtype=torch.float32)


def test_the_servers_share_is_not_free(on):
    assert on(20, LORA).training.merged
    assert not on(20, LORA, server_share=0.5).training.merged or on(20, LORA, server_share=0.5).training.checkpointing
    assert "10.0 GB are the inference server's" in on(20, LORA, server_share=0.5).report(0)["text"]


def test_other_models_of_the_run_need_memory_too(on, folder):
    alone = on(80, LORA)
    critic = {"role": "critic", "adapter": {**LORA, "targets": ["attn"]}, "head": "value"}
    reference, judge = ({"role": role, "adapter": {"kind": "none"}} for role in ("reference model", "reward model"))
    # With LoRA they are the same weights without an adapter, or with another one.
    assert on(80, LORA, others=[reference]).needed == alone.needed
    assert 0 < on(80, LORA, others=[critic]).needed - alone.needed < 0.1e9
    with_judge = on(80, LORA, others=[reference, critic, {**judge, "model": str(folder)}])
    weights = alone.parts.weights
    assert with_judge.needed - alone.needed == pytest.approx(weights, rel=0.05)
    assert "reward model 3.1 GB" in with_judge.report(0)["text"]
    # Models that train all weights share none.
    full = on(80, FULL)
    assert on(80, FULL, others=[reference]).needed - full.needed == pytest.approx(weights, rel=0.01)
    assert on(80, FULL, others=[{**critic, "adapter": FULL}]).needed - full.needed == full.parts.fixed
    with pytest.raises(UserMistake, match="critic"):
        on(30, FULL, others=[{**critic, "adapter": FULL}])


def test_several_processes(on):
    def shared(gigabytes: float, sharding: str, processes: int = 8, **options):
        return on(gigabytes, FULL, measured=measure_shared, sharing=Sharing(processes, sharding), **options)

    zero1, fsdp = shared(80, "zero1"), shared(80, "fsdp")
    assert zero1.parts.fixed > 2 * fsdp.parts.fixed and not fsdp.training.checkpointing
    assert "in each of 8 processes of 80.0 GB free" in fsdp.report(0)["text"]
    with pytest.raises(UserMistake) as refused:
        shared(8, "zero1", checkpointing=True)
    assert refused.value.hint == "it fits with local.sharding=fsdp"
    # On a CPU, processes share the memory.
    assert shared(80, "fsdp", device="cpu", dtype=torch.float32).room.free == 10e9


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3", "fsdp"])
def test_each_process_needs_its_share(sharding):
    config = AutoConfig.for_model("llama", hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=512)
    weights = 2 * 512 * 64 + 3 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    training = Training(FULL, 64, torch.bfloat16, "cuda", sharing=Sharing(2, sharding, offload_optimizer=True))
    bytes_of = {"zero1": (2, 2, 6), "zero2": (2, 2, 6), "zero3": (1, 2, 6), "fsdp": (2, 2, 4)}
    parts = measure_shared(config, training)
    found = (parts.weights, parts.gradients, parts.optimizer)
    assert found == pytest.approx([size * weights for size in bytes_of[sharding]], rel=0.01)
    assert parts.offloaded == parts.optimizer + (0 if sharding == "fsdp" else 2 * weights)


@pytest.mark.parametrize("kind", ["mamba", "unknown"])
def test_an_architecture_whose_shapes_say_nothing_is_not_refused(kind, folder, on, tmp_path, monkeypatch, capfd):
    if kind == "mamba":
        AutoConfig.for_model("mamba", hidden_size=32, num_hidden_layers=2).save_pretrained(tmp_path)
    else:
        (tmp_path / "config.json").write_text('{"model_type": "not-known"}')
    monkeypatch.setattr(memory_fit, "available_bytes", lambda _: 10**9)
    plan = {"adapter": LORA, "tokens": 64, "rows": 0, "server_share": 0}
    load = {"plan": plan, "gradient_checkpointing": "auto", "micro_batch_tokens": 0, "chunk_size": 256}
    assert choose(ModelSource(tmp_path, "m", torch.device("cpu"), torch.float32, False), load) is None
    assert "the memory that training needs is unknown" in capfd.readouterr().err
