/** `distillation` as options. */
import type { TeacherAdvantageOptions } from "../../algorithms/distillation/teacher-advantages.ts";
import {
  actsOnAdvantages,
  comparesLikely,
  divergenceIn,
  estimatorIn,
  type TeacherSpec,
  teachersIn,
} from "../../backends/teachers/teachers-in.ts";
import type { Config } from "../../config/schema.ts";
import type { TeacherTerm } from "../update/learn-from-teacher.ts";

export interface TeachingOptions {
  /** Empty: the policy itself. */
  teachers: readonly TeacherSpec[];
  /** The column of a row that names its teacher; undefined for a single teacher. */
  column: string | undefined;
  /** Number of likely tokens that the loss compares. */
  count: number;
  /** The longest sequence in tokens that teachers must be able to read. */
  longest: number;
}

/** Undefined without a teacher. */
export function teachingOptions(config: Config): TeachingOptions | undefined {
  const { distillation, data, training, rllm } = config;
  if (!distillation.enabled || rllm.trainer.val_only) return undefined;
  const teachers = teachersIn(config);
  return {
    teachers,
    column: teachers.length > 1 ? distillation.teacher_key : undefined,
    count: comparesLikely(config) ? distillation.distillation_loss.topk : 0,
    longest: Math.min(training.max_length, data.max_prompt_length + data.max_response_length),
  };
}

/** How the difference from the teacher acts: on the advantages, or as a term of the loss. */
export function teacherTerms(config: Config): { advantages?: TeacherAdvantageOptions; loss?: TeacherTerm } {
  const { enabled, distillation_loss: keys } = config.distillation;
  if (!enabled) return {};
  const { distillation_loss_coef: coefficient, loss_max_clamp: maxLoss } = keys;
  const estimator = estimatorIn(config);
  if (actsOnAdvantages(config)) {
    const bounds = maxLoss === null ? undefined : { low: -maxLoss, high: maxLoss };
    return { advantages: { estimator, coefficient, discount: keys.kl_discount_factor, bounds } };
  }
  const divergence = divergenceIn(config);
  if (divergence === undefined) return { loss: { coefficient, loss: { kind: "estimator", estimator, maxLoss } } };
  const { beta, add_tail: tail, topk: count, log_prob_min_clamp: leastLogprob } = keys;
  return { loss: { coefficient, loss: { kind: "tokens", divergence, maxLoss, beta, tail, count, leastLogprob } } };
}
