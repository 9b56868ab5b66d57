/** `rllm.remote_runtime`: agents that run in containers of an external service. */
import { z } from "zod";
import { aboveZero, freeArguments, off, section } from "./about.ts";

const later = "agents in remote runtimes are not supported yet";

export const remoteRuntime = section({
  enabled: off.describe("Run agents in a remote runtime.").meta({ later }),
  backend: z.enum(["agentcore", "harbor"]).default("agentcore").describe("Remote runtime to use.").meta({ later }),
  agentcore: freeArguments.default({}).describe("Settings of AgentCore.").meta({ later }),
  harbor: freeArguments.default({}).describe("Settings of Harbor.").meta({ later }),
  session_timeout: aboveZero.default(300).describe("Time limit per remote session in seconds.").meta({ later }),
});
