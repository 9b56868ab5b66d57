/** `rllm.remote_runtime`: agents that run in containers of somebody else's. */
import { z } from "zod";
import { freeArguments } from "./about.ts";

const later = "agents in remote runtimes are not built yet";

export const remoteRuntime = z
  .strictObject({
    enabled: z.boolean().default(false).describe("Run agents in a remote runtime.").meta({ later }),
    backend: z.enum(["agentcore", "harbor"]).default("agentcore").describe("Which runtime.").meta({ later }),
    agentcore: freeArguments.default({}).describe("Settings of AgentCore.").meta({ later }),
    harbor: freeArguments.default({}).describe("Settings of Harbor.").meta({ later }),
    session_timeout: z.number().gt(0).default(300).describe("Seconds one remote session may take.").meta({ later }),
  })
  .prefault({});
