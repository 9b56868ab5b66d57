import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkSettings, unsupportedSettings } from "../../rules/check.ts";
import { type Mistake, originText } from "../tree.ts";
import { composeLightRft, flagDescriptions, parseFlags, readLightRft, spellings } from "./compose.ts";

describe("parse flags", () => {
  const least = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "4"];

  function parse(...args: string[]) {
    const mistakes: Mistake[] = [];
    const positional: string[] = [];
    const { values, given } = parseFlags([...least, ...args], positional, mistakes);
    return { values, given, positional, mistakes: mistakes.map(({ where, message }) => `${where}: ${message}`) };
  }

  describe("parseFlags", () => {
    it("gives the documented defaults", () => {
      const { values, mistakes } = parse();
      expect(mistakes).toEqual([]);
      expect(values).toMatchObject({
        max_len: 4096,
        prompt_max_len: 2048,
        actor_learning_rate: 5e-7,
        lr_warmup_ratio: 0.03,
        adam_betas: [0.9, 0.95],
        micro_train_batch_size: 1,
        micro_rollout_batch_size: 2,
        advantage_estimator: "group_norm",
        n_samples_per_prompt: 4,
        clip_range_higher: 0.3,
        top_p: 0.9,
        zero_stage: 2,
        engine_type: "vllm",
        enable_engine_sleep: true,
        chunk_size: 4096,
        max_ckpt_mem: 1000,
        remote_rm_url: null,
      });
    });

    it.each([
      [["--max_len", "512"], { max_len: 512 }],
      [["--max_len=512"], { max_len: 512 }],
      [["--max_len", "512", "--max_len", "64"], { max_len: 64 }],
      [["--actor_learning_rate", "1e-6"], { actor_learning_rate: 1e-6 }],
      [["--l2", ".01"], { l2: 0.01 }],
      [["--adam_betas", "0.8", "0.9"], { adam_betas: [0.8, 0.9] }],
      [["--adam_betas", "(0.8, 0.9)"], { adam_betas: [0.8, 0.9] }],
      [["--adam_betas=0.8,0.9"], { adam_betas: [0.8, 0.9] }],
      [["--fsdp", "--bf16"], { fsdp: true, bf16: true }],
      [["--disable_engine_sleep"], { enable_engine_sleep: false }],
      [["--eps_clip", "0.1"], { clip_range: 0.1 }],
      [["--wandb_run_name", "7"], { wandb_run_name: "7" }],
      [["--kl_target", "0"], { kl_target: 0 }],
    ])("%j", (args, expected) => {
      const { values, mistakes } = parse(...args);
      expect(mistakes).toEqual([]);
      expect(values).toMatchObject(expected);
    });

    it.each([
      [["--max_lenn", "5"], "--max_lenn: unknown flag; did you mean --max_len"],
      [["--max-len", "5"], "--max-len: unknown flag; did you mean --max_len"],
      [["--max_len", "many"], '--max_len many: max_len expects integer >= 2, got "many"'],
      [["--max_len"], "--max_len: needs a value"],
      [["--max_len", "--fsdp"], "--max_len: needs a value"],
      [["--adam_betas", "0.9"], "--adam_betas: needs two values"],
      [["--fsdp=true"], "--fsdp=true: does not take a value"],
      [["--zero_stage", "4"], "--zero_stage 4: zero_stage expects"],
      [
        ["--advantage_estimator", "grpo"],
        "--advantage_estimator grpo: advantage_estimator expects group_norm | reinforce",
      ],
      [["--num_episodes", "1.5"], "--num_episodes 1.5: num_episodes expects integer >= 1, got 1.5"],
    ])("%j is a mistake", (args, message) => {
      expect(parse(...args).mistakes).toEqual([expect.stringContaining(message)]);
    });

    it("lists all missing required flags at once", () => {
      const mistakes: Mistake[] = [];
      parseFlags([], [], mistakes);
      expect(mistakes.map(({ where }) => where)).toEqual(["--pretrain", "--train_batch_size", "--rollout_batch_size"]);
    });

    it("separates other words from flags", () => {
      expect(parse("./train.ts", "--fsdp", "rllm.rollout.n=4").positional).toEqual(["./train.ts", "rllm.rollout.n=4"]);
    });

    it("never throws", () => {
      const names = [...spellings.keys(), "x"].map((name) => `--${name}`);
      const word = fc.oneof(fc.constantFrom(...names), fc.string(), fc.double().map(String));
      fc.assert(
        fc.property(fc.array(word), (args) => {
          expect(Array.isArray(parse(...args).mistakes)).toBe(true);
        }),
        { numRuns: 500, seed: 1 },
      );
    });

    it("describes every flag", () => {
      for (const { key, description } of flagDescriptions.values()) expect(description, key).not.toBe("");
    });
  });
});

describe("compose lightrft", () => {
  const least = "--pretrain m --train_batch_size 16 --rollout_batch_size 4 --save_path runs/x";

  function compose(line: string, environment: NodeJS.ProcessEnv = {}) {
    return composeLightRft(readLightRft(line.split(" "), { environment }));
  }

  /** The arguments of `python train.py` in the documentation's two complete examples. */
  const examples = {
    "mathematical reasoning":
      "--pretrain /path/to/Qwen2.5-7B-Instruct --reward_pretrain /path/to/reward-model --max_len 4096 --prompt_max_len 2048 --num_episodes 20 --max_epochs 1 --actor_learning_rate 5e-7 --critic_learning_rate 9e-6 --train_batch_size 128 --micro_train_batch_size 1 --rollout_batch_size 64 --micro_rollout_batch_size 2 --advantage_estimator group_norm --n_samples_per_prompt 8 --kl_estimator k3 --init_kl_coef 0.001 --temperature 0.6 --zero_stage 2 --bf16 --gradient_checkpointing --engine_type vllm --engine_tp_size 1 --engine_mem_util 0.85 --enable_engine_sleep --adam_offload --fused_linear_logprob --use_tensorboard ./tb_logs --plot_every 10 --save_path ./checkpoints --save_interval 1 --max_ckpt_num 3 --reward_running_norm --advantages_norm",
    multimodal:
      "--pretrain /path/to/Qwen2-VL-7B-Instruct --max_len 4096 --num_episodes 10 --actor_learning_rate 1e-6 --train_batch_size 64 --micro_train_batch_size 1 --rollout_batch_size 32 --micro_rollout_batch_size 1 --advantage_estimator group_norm --n_samples_per_prompt 4 --fsdp --fsdp_cpu_offload --gradient_checkpointing --engine_tp_size 4 --engine_mem_util 0.6 --mixed_mm_data --packing_samples",
  };

  describe("the documentation's examples", () => {
    it("composes mathematical reasoning", () => {
      const { config, warnings } = compose(examples["mathematical reasoning"]);
      expect(config.model.name).toBe("/path/to/Qwen2.5-7B-Instruct");
      expect(config.data).toMatchObject({ train_batch_size: 64, max_prompt_length: 2048, max_response_length: 4096 });
      expect(config.training).toMatchObject({
        num_minibatches: 4,
        learning_rate: 5e-7,
        max_ckpt_num: 3,
        lr_schedule: "cosine",
      });
      expect(config.rllm.rollout).toMatchObject({ n: 8, train: { temperature: 0.6, top_p: 0.9 } });
      expect(config.rllm.trainer).toMatchObject({ run_dir: "./checkpoints", save_freq: 1, freq_unit: "epochs" });
      expect(config.local).toMatchObject({
        dtype: "bfloat16",
        sharding: "zero2",
        offload_optimizer: true,
        processes: 1,
      });
      expect(config.local.sampler).toMatchObject({ type: "vllm", memory_share: 0.85, sleep: true });
      expect(warnings.map(({ text }) => text)).toContainEqual(
        expect.stringContaining("each rollout trains 512 samples in 4 optimizer steps"),
      );
    });

    it("composes multimodal training, with the processes that its tensor parallelism needs", () => {
      const { config, warnings } = compose(examples.multimodal);
      expect(config.local).toMatchObject({ processes: 4, sharding: "fsdp", offload_optimizer: true });
      expect(config.data.mixed_mm_data).toBe(true);
      expect(warnings.map(({ paths }) => paths[0])).toContain("--save_path");
    });
  });

  describe("composeLightRft", () => {
    it("distinguishes the origins of flags, LightRFT's defaults and overrides", () => {
      const { config, origins } = compose(`${least} --max_len 512 training.weight_decay=0.1`);
      const origin = (key: string) => originText(origins.get(key)!);
      expect(origin("training.max_length")).toBe("command line: --max_len 512");
      expect(origin("rllm.rollout.n")).toBe("LightRFT's default of --n_samples_per_prompt");
      expect(origin("training.weight_decay")).toBe("command line: training.weight_decay=0.1");
      expect(config.training.weight_decay).toBe(0.1);
      expect(config.rllm.data.max_response_length).toBe(512);
    });

    it("a given flag wins over the script, LightRFT's default does not", () => {
      const command = readLightRft(`${least} --max_epochs 2`.split(" "), { environment: {} });
      const input = { rllm: { rollout: { n: 6 } }, training: { ppo_epochs: 3 } };
      const { config } = composeLightRft(command, { input });
      expect([config.rllm.rollout.n, config.training.ppo_epochs]).toEqual([6, 2]);
    });

    it.each([
      ["gspo", "group_norm", "gspo"],
      ["gmpo", "group_norm", "gmpo"],
      ["cpgd", "cpgd", "cpgd"],
      ["reinforce", "reinforce", "ppo"],
      ["gae", "gae", "ppo"],
    ])("--advantage_estimator %s", (name, estimator, loss) => {
      const { algorithm } = compose(`${least} --advantage_estimator ${name}`).config.rllm;
      expect([algorithm.adv_estimator, algorithm.loss_fn, algorithm.estimator_preset]).toEqual([
        estimator,
        loss,
        "lightrft",
      ]);
    });

    it.each([
      ["--load_checkpoint", { resume_mode: "auto", resume_from_path: null }],
      ["--load_checkpoint --ckpt_path runs/a", { resume_mode: "path", resume_from_path: "runs/a" }],
      ["--max_norm 1", { resume_mode: "off", resume_from_path: null }],
    ])("%s", (line, expected) => expect(compose(`${least} ${line}`).config.training).toMatchObject(expected));

    it.each(["--packing_samples", "--fused_linear_logprob", "--micro_rollout_batch_size 4", "--ckpt_path runs/a"])(
      "warns that %s has no effect",
      (line) => {
        const texts = compose(`${least} ${line}`).warnings.map(({ text }) => text);
        expect(texts).toEqual([expect.stringContaining(`${line} has no effect: `)]);
      },
    );

    it.each([
      ["--max_norm 1", { type: "auto" }],
      ["--engine_type sglang", { type: "sglang" }],
      ["--engine_tp_size 2", { type: "vllm", tensor_parallel: 2 }],
      ["--engine_mem_util 0.3", { type: "vllm", memory_share: 0.3 }],
      ["--disable_engine_sleep", { type: "vllm", sleep: false }],
      ["--engine_type sglang local.sampler.type=own", { type: "own" }],
    ])("an inference server is started only if %s asks for one", (line, sampler) => {
      expect(compose(`${least} ${line}`).config.local.sampler).toMatchObject(sampler);
    });
  });

  const unsupported = (line: string) => unsupportedSettings(compose(`${least} ${line}`)).map(({ message }) => message);

  describe("the flags of distributed training and memory", () => {
    const local = (line: string) => compose(`${least} ${line}`, { WORLD_SIZE: "2" }).config.local;

    it.each([
      ["--zero_stage 3", { processes: 2, sharding: "zero3" }],
      ["--max_norm 1", { sharding: "zero2", offload_optimizer: false }],
      ["--fsdp", { sharding: "fsdp" }],
      ["--fsdp --fsdp_cpu_offload", { sharding: "fsdp", offload_optimizer: true }],
      ["--adam_offload", { sharding: "zero2", offload_optimizer: true }],
      ["--sp_size 2", { sequence_parallel: 2 }],
      ["--bf16 --gradient_checkpointing", { dtype: "bfloat16", gradient_checkpointing: true }],
      ["--chunk_size 64", { chunk_size: 64 }],
      ["--use_mp_opt", { mixed_precision_optimizer: true }],
    ])("%s", (line, expected) => expect(local(line)).toMatchObject(expected));

    it.each(["--adam_offload", "--fsdp --fsdp_cpu_offload"])("%s has no effect with one process", (line) => {
      const flag = line.split(" ").at(-1);
      expect(unsupported(line)).toContainEqual(
        expect.stringMatching(`^${flag} \\(local.offload_optimizer=true\\) has no effect: .* WORLD_SIZE`),
      );
      expect(unsupported(`${line} local.processes=2`)).toEqual([]);
    });

    it("the complete text example runs without WORLD_SIZE", () => {
      const composed = compose(`${examples["mathematical reasoning"]} local.sampler.type=own`);
      const { warnings } = checkSettings(composed);
      const noEffect = warnings.filter(({ category }) => category === "no_effect").map(({ text }) => text);
      expect(noEffect).toEqual(expect.arrayContaining([expect.stringMatching(/^--zero_stage 2 \(local.sharding/)]));
      for (const text of noEffect) expect(text).toMatch(/^--\w+/);
    });

    it.each(["data.train_batch_size=2", "rllm.data.train_batch_size=2"])("%s wins over the flag", (override) => {
      const { config, warnings } = compose(`${least} ${override}`);
      expect([config.data.train_batch_size, config.rllm.data.train_batch_size]).toEqual([2, 2]);
      expect(warnings).toEqual([]);
    });
  });

  it("cpgd without a KL does not get the default KL target", () => {
    const { config } = compose(`${least} --advantage_estimator cpgd --init_kl_coef 0`);
    expect(config.rllm.algorithm).toMatchObject({ kl_beta: 0, kl_target: null });
    expect(compose(`${least} --advantage_estimator cpgd`).config.rllm.algorithm.kl_target).toBe(0.01);
  });

  it("generates --wandb_run_name if it is not set", () => {
    const nameOf = (line: string) => compose(`${least} ${line}`).config.rllm.trainer.experiment_name;
    expect(nameOf("--use_wandb team")).toMatch(/^lightrft-\d{8}T\d{4}$/);
    expect(nameOf("--use_wandb team --wandb_run_name first")).toBe("first");
    expect(nameOf("--max_norm 1")).toBe("default");
  });

  it("writes plots and trajectories to --log_dir", () => {
    const { rllm } = compose(`${least} --log_dir logs`).config;
    expect(rllm.trainer.plot_dir).toBe("logs/plots");
    expect(rllm.episode_logging).toEqual({ log_episodes: true, episode_log_dir: "logs" });
  });

  it("reward models, their servers, and the critic's model", () => {
    const { rllm } = compose(
      `${least} --reward_pretrain ./judge --rm_use_engine --normalize_reward --advantage_estimator gae --critic_pretrain ./critic --critic_learning_rate 1e-4`,
    ).config;
    expect(rllm.reward).toMatchObject({ model: "./judge", own_weight: 0, use_engine: true, normalize: true });
    expect(rllm.critic).toMatchObject({ model: "./critic", learning_rate: 1e-4 });
  });
});
