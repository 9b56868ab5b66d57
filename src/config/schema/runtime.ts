/** `rllm.remote_runtime`: coding agents on tasks in containers. */
import { z } from "zod";
import { aboveZero, freeArguments, off, section } from "./about.ts";

const multiplier = (what: string) => aboveZero.default(1).describe(`Factor of the tasks' time limits for ${what}.`);

export const remoteRuntime = section({
  enabled: off.describe("Run an agent of `backend` on each task, in place of a workflow or an environment."),
  backend: z
    .enum(["agentcore", "harbor"])
    .default("agentcore")
    .describe("What runs the agents. Only harbor is supported; AgentCore is refused."),
  agentcore: freeArguments
    .default({})
    .describe("Settings of AgentCore.")
    .meta({ later: "agents in AWS's AgentCore are not supported; rllm.remote_runtime.backend=harbor is" }),
  harbor: section({
    agent: z.string().default("pi").describe("One of Harbor's agents, or a class: package.module:Class."),
    environment_type: z
      .string()
      .nullable()
      .default(null)
      .describe("Where containers run: docker, podman, daytona, e2b, modal, ...; null is Docker, or else podman."),
    network: z
      .enum(["bridge", "host"])
      .default("bridge")
      .describe("Network of containers on this machine; host shares the machine's network, without isolation."),
    agent_kwargs: freeArguments.default({}).describe("Options of Harbor's agent."),
    program_folder: z
      .string()
      .nullable()
      .default(null)
      .describe("A folder of this machine with the agent's program, mounted; null installs it in each trial."),
    program_path: z.array(z.string()).default([]).describe("Folders in program_folder that have programs."),
    mounts: z
      .record(z.string(), z.string())
      .default({})
      .describe("More folders or files of this machine for the container, read-only, by their path in the container."),
    agent_timeout_multiplier: multiplier("the agent"),
    agent_setup_timeout_multiplier: multiplier("the agent's set-up"),
    verifier_timeout_multiplier: multiplier("the verifier"),
    environment_build_timeout_multiplier: multiplier("building and starting the environment"),
  }).describe("Settings of Harbor."),
  session_timeout: aboveZero
    .default(300)
    .describe("The most seconds that an agent gets for a task, also if the task allows more."),
});
