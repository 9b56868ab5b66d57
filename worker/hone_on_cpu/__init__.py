"""What exists only so that verl, which is for GPUs, runs on CPUs: its workers (`platform`, `engines`), and its rollout servers
(`small_rollout`, `vllm_on_cpu`, which the package does not contain)."""
