/** `rllm.remote_runtime`: agents that run in containers of an external service. */
import { z } from "zod";
import { freeArguments } from "./about.ts";

const later = "agents in remote runtimes are not supported yet";

export const remoteRuntime = z
  .strictObject({
    enabled: z.boolean().default(false).describe("Run agents in a remote runtime.").meta({ later }),
    backend: z.enum(["agentcore", "harbor"]).default("agentcore").describe("Remote runtime to use.").meta({ later }),
    agentcore: freeArguments.default({}).describe("Settings of AgentCore.").meta({ later }),
    harbor: freeArguments.default({}).describe("Settings of Harbor.").meta({ later }),
    session_timeout: z
      .number()
      .gt(0)
      .default(300)
      .describe("Time limit per remote session in seconds.")
      .meta({ later }),
  })
  .prefault({});
