"""What exists only so that code for GPUs runs on CPUs: verl's workers (`platform`, `engines`, `settings`), its rollout servers
(`small_rollout`, `vllm_on_cpu`, which the package does not contain), and the process group of NCCL (`gloo_group`)."""
