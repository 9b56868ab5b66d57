/**
 * Experiments, tasks, workflows, rewards, tools, training.
 * @module
 */
export {
  type GridMap,
  type GridWorldRow,
  type GuessNumberRow,
  gridMap,
  gridWorld,
  gridWorlds,
  guessNumber,
  type QuestionOptions,
  questionEnvironment,
} from "./agents/environments.ts";
export {
  type AgentResult,
  type CommandAgentOptions,
  commandAgent,
  type ExternalAgentOptions,
  type ExternalJob,
  externalAgent,
} from "./agents/programs.ts";
export {
  defineTool,
  type McpOptions,
  type McpServer,
  openMcpTools,
  ToolArgumentError,
  type ToolBox,
  type ToolOptions,
  toolEnvironment,
  type UseToolsOptions,
  useTools,
} from "./agents/tools.ts";
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
} from "./agents/types.ts";
export {
  type ChatAgentOptions,
  chatAgent,
  cumulative,
  type MultiTurnOptions,
  multiTurn,
  type PromptOptions,
  type SingleTurnOptions,
  type SolverJudgeOptions,
  singleTurn,
  solverJudge,
} from "./agents/workflows.ts";
export type { AdvantageEstimator, RewardGroup } from "./algorithms/advantages.ts";
export { type CustomLoss, type LossInput, sequenceLoss, tokenLoss } from "./algorithms/custom-loss.ts";
export type { EstimatorOptions } from "./algorithms/estimators.ts";
export { modelFolder } from "./backends/local/engine.ts";
export { type ServerSamplerOptions, serverSampler } from "./backends/servers/sampler.ts";
export { HoneError, type HoneErrorOptions, RunError, UserError } from "./base/errors.ts";
export { randomInteger, uniforms } from "./base/values.ts";
export type { SequenceStart } from "./chat/conversation.ts";
export {
  type ChatMessage,
  type Content,
  type ImagePart,
  type ParsedReply,
  type ReplyProblem,
  type TextPart,
  type ToolCall,
  type ToolDefinition,
  textOf,
  toMessage,
} from "./chat/messages.ts";
export { defineRenderer, type RendererDefinition } from "./chat/renderers.ts";
export type { Config, ConfigInput } from "./config/schema.ts";
export { columns, type Dataset, type FileRow, fromRows, generated, type Task } from "./data/dataset.ts";
export { fromAsync } from "./data/from-async.ts";
export { openDataset } from "./data/open-dataset.ts";
export { type GatewayOptions, openGateway } from "./gateway/gateway.ts";
export {
  anthropicGatewayBaseURL,
  type GatewayContext,
  gatewayBaseURL,
  inGatewayContext,
  type PolicySessionsOptions,
  policySessions,
} from "./gateway/sessions.ts";
export { openTraceStore, type TraceStoreOptions } from "./gateway/traces/store.ts";
export type { Gateway, GatewaySession, SessionSummary, Trace, TraceSession, TraceStore } from "./gateway/types.ts";
export type { ImageSource, StoredImage } from "./images/images.ts";
export * from "./rewards/index.ts";
export { dpo } from "./supervised/dpo.ts";
export type { SourceOptions } from "./supervised/experiment.ts";
export { type FineTuneOptions, fineTune } from "./supervised/fine-tune.ts";
export { sft } from "./supervised/sft.ts";
export { defineExperiment, type Experiment, type TrainOptions } from "./trainer/experiment.ts";
export type { AgentFactory, EnvironmentFactory, NamedArguments, NamedParts } from "./trainer/named.ts";
export { type Stage, trainStages } from "./trainer/stages.ts";
export type { TeacherPrompt } from "./trainer/teachers.ts";
export { type RunSummary, train } from "./trainer/train.ts";
export type { Episode, Step, Trajectory } from "./trajectories/types.ts";

/** The server through which agents call the model that is being trained, and the store of what they called. */
