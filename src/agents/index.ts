export type { Task } from "../data/task.ts";
export { type ChatAgentOptions, chatAgent } from "./chat-agent.ts";
export { type AgentResult, type CommandAgentOptions, commandAgent } from "./command-agent.ts";
export { defineTool, ToolArgumentError, type ToolOptions } from "./define-tool.ts";
export { type ExternalAgentOptions, type ExternalJob, externalAgent } from "./external-agent.ts";
export { type McpOptions, type McpServer, openMcpTools } from "./mcp/mcp-tools.ts";
export { cumulative, type MultiTurnOptions, multiTurn } from "./multi-turn.ts";
export type { PromptOptions } from "./prompt.ts";
export { type SingleTurnOptions, singleTurn } from "./single-turn.ts";
export { type SolverJudgeOptions, solverJudge } from "./solver-judge.ts";
export type {
  Agent,
  CallParams,
  Environment,
  EnvironmentContext,
  EnvironmentStep,
  GatewayAccess,
  GatewayAddress,
  ModelClient,
  Observation,
  Outcome,
  Reply,
  Reward,
  RewardContext,
  Tool,
  Workflow,
  WorkflowContext,
} from "./types.ts";
export { type ToolBox, toolEnvironment, type UseToolsOptions, useTools } from "./use-tools.ts";
