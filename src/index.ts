/**
 * Experiments, tasks, workflows, rewards, tools, training.
 * @module
 */
export { type GridMap, type GridWorldRow, gridMap, gridWorld, gridWorlds } from "./agents/environments/grid-world.ts";
export { type GuessNumberRow, guessNumber } from "./agents/environments/guess-number.ts";
export { type QuestionOptions, questionEnvironment } from "./agents/environments/question.ts";
export * from "./agents/index.ts";
export type { AgentFactory, EnvironmentFactory, NamedArguments, NamedParts } from "./agents/named/parts.ts";
export type { AdvantageEstimator, RewardGroup } from "./algorithms/advantages/estimate-advantages.ts";
export type { EstimatorOptions } from "./algorithms/estimators/estimator.ts";
export { type CustomLoss, type LossInput, sequenceLoss, tokenLoss } from "./algorithms/policy-loss/custom-loss.ts";
export { modelFolder } from "./backends/local/model-folder.ts";
export { type ServerSamplerOptions, serverSampler } from "./backends/servers/server-sampler.ts";
export type { SequenceStart } from "./chat/conversations/conversation.ts";
export { textOf } from "./chat/images/content.ts";
export {
  type ChatMessage,
  type Content,
  type ImagePart,
  type ParsedReply,
  type ReplyProblem,
  type TextPart,
  type ToolCall,
  type ToolDefinition,
  toMessage,
} from "./chat/messages.ts";
export { defineRenderer, type RendererDefinition } from "./chat/templates/define-renderer.ts";
export type { Config, ConfigInput } from "./config/schema.ts";
export { columns } from "./data/columns.ts";
export { fromAsync } from "./data/from-async.ts";
export { fromRows } from "./data/from-rows.ts";
export { generated } from "./data/generated.ts";
export { openDataset } from "./data/open-dataset.ts";
export type { Dataset, FileRow } from "./data/types.ts";
export { HoneError, type HoneErrorOptions, RunError, UserError } from "./errors.ts";
export * from "./gateway/index.ts";
export {
  anthropicGatewayBaseURL,
  type GatewayContext,
  gatewayBaseURL,
  inGatewayContext,
} from "./gateway/sessions/ambient.ts";
export type { ImageSource, StoredImage } from "./images/types.ts";
export { randomInteger, uniforms } from "./random.ts";
export * from "./rewards/index.ts";
export { dpo } from "./supervised/dpo.ts";
export type { SourceOptions } from "./supervised/experiment.ts";
export { type FineTuneOptions, fineTune } from "./supervised/fine-tune.ts";
export { sft } from "./supervised/sft.ts";
export { defineExperiment, type Experiment, type TeacherPrompt } from "./trainer/experiment.ts";
export type { TrainOptions } from "./trainer/launch.ts";
export { type Stage, trainStages } from "./trainer/stages.ts";
export { type RunSummary, train } from "./trainer/train.ts";
export type { Episode, Step, Trajectory } from "./trajectories/types.ts";
