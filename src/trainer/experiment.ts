/** What a training script exports: its tasks, how one is attempted and graded, and its settings. */
import type { NamedParts } from "../agents/named/parts.ts";
import type { Workflow } from "../agents/types.ts";
import type { AdvantageEstimator } from "../algorithms/advantages/estimate-advantages.ts";
import type { CustomLoss } from "../algorithms/policy-loss/custom-loss.ts";
import type { ScriptFacts } from "../backends/rule.ts";
import type { ChatMessage } from "../chat/messages.ts";
import type { ConfigInput } from "../config/schema.ts";
import type { Dataset } from "../data/types.ts";
import type { SourceKind } from "./source.ts";

/** What is trained: tasks, a workflow that attempts and grades them, and settings. */
export interface Experiment<Row> extends NamedParts<Row> {
  /** Tasks to learn from. */
  train: Dataset<Row>;
  /** Tasks to measure on before, during and after training. */
  validation?: Dataset<Row>;
  /** One attempt at one task. Default: what `rllm.agent`, `rllm.env` and `rllm.workflow` name. */
  workflow?: Workflow<Row>;
  /** What the run learns from instead of rollouts; `sft` and `dpo` make such experiments. */
  source?: SourceKind;
  /** Your own advantage estimators, by the names that `rllm.algorithm.adv_estimator` can then have. */
  estimators?: Readonly<Record<string, AdvantageEstimator>>;
  /** Your own policy losses, by the names that `rllm.algorithm.loss_fn` and `loss_fn_map` can then have. */
  losses?: Readonly<Record<string, CustomLoss>>;
  /**
   * Self-distillation (`distillation.enabled=true`): the prompt of the teacher instead of a model call's `messages`, such as
   * these with the answer, a demonstration or feedback. The teacher scores the policy's reply after this prompt. Without
   * `distillation.teacher_models` the teacher is the policy itself.
   *
   * @example
   * teacherPrompt: (row, messages) => [{ role: "system", content: `The answer is ${row.answer}.` }, ...messages]
   */
  teacherPrompt?: TeacherPrompt<Row>;
  /** Settings of this experiment, weaker than files and command line overrides. */
  config?: ConfigInput;
  /** Called once at the end of the run, even if it failed: closes servers and tools that the script opened. */
  close?(): void | Promise<void>;
  /** What to try next, printed at the end of the run. */
  next?: string;
}

/** The prompt after which a teacher scores a reply. */
export type TeacherPrompt<Row> = (
  row: Row,
  messages: readonly ChatMessage[],
) => readonly ChatMessage[] | Promise<readonly ChatMessage[]>;

/** What rules about settings read of an experiment. */
export function scriptFacts(
  experiment: Pick<Experiment<unknown>, "estimators" | "losses" | "source" | "train" | "validation"> & {
    teacherPrompt?: unknown;
  },
): ScriptFacts {
  const { estimators = {}, losses = {}, source, teacherPrompt, train, validation } = experiment;
  return {
    estimators,
    losses,
    source: source?.name ?? "rollouts",
    teachesItself: teacherPrompt !== undefined,
    tasks: train.size,
    validation: validation?.name,
  };
}

/**
 * Types an experiment without running it, for `export default`.
 *
 * @example
 * export default defineExperiment({
 *   train: fromRows("sums", [{ question: "2+2", answer: 4 }]),
 *   workflow: singleTurn({ prompt: (row) => row.question, reward: (row, reply) => Number(reply.text.includes(String(row.answer))) }),
 * });
 */
export function defineExperiment<Row>(experiment: Experiment<Row>): Experiment<Row> {
  return experiment;
}
