/** Learning from a teacher: advantages on the sampled tokens, and divergences over several tokens of each position. */

import {
  alignTeacher,
  type Compared,
  type DivergenceName,
  type DivergenceOptions,
  divergences,
  estimatorLoss,
  overlap,
  teacherAdvantages,
  teacherKl,
  tokensLoss,
} from "../../../src/algorithms/distillation.ts";
import { offsetsOf } from "../../../src/trajectories/batch.ts";
import { type Families, family } from "./family.ts";
import { klName } from "./kl.ts";
import { evaluateLoss, floats, type Matrix, ragged, raggedOffsets, spread } from "./loss-batch.ts";

interface CookbookRow {
  sampled_logprobs: number[];
  teacher_logprobs: number[];
  mask: number[];
  advantages_before: number[];
}
interface CookbookParams {
  kl_penalty_coef: number;
  kl_discount_factor: number;
}

interface CookbookOutputs {
  advantages: Matrix;
  teacher_kl: number;
}

/** Tokens outside the mask have no loss; upstream's discount gives them values too, which are copied. */
const cookbook = family<{ rows: CookbookRow[] }, CookbookParams, CookbookOutputs>(({ inputs, params, outputs }) => {
  const column = (name: keyof CookbookRow) => inputs.rows.map((row) => row[name]);
  const mask = column("mask");
  const [student, teacher] = [ragged(column("sampled_logprobs"), mask), ragged(column("teacher_logprobs"), mask)];
  const { kl_penalty_coef: coefficient, kl_discount_factor: discount } = params;
  const options = { estimator: "k1", coefficient, discount } as const;
  const own = spread(teacherAdvantages(student, teacher, places(mask), raggedOffsets(mask), options), mask);
  const advantages = column("advantages_before").map((row, b) =>
    row.map((value, t) => (mask[b]![t] === 1 ? value + own[b]![t]! : outputs.advantages[b]![t]!)),
  );
  return { advantages, teacher_kl: teacherKl(student, teacher) };
});

/** `[N]` the place in its row of each token of the mask. */
const places = (mask: Matrix): number[] =>
  mask.flatMap((row) => row.flatMap((flag, place) => (flag === 1 ? [place] : [])));

interface RllmParams {
  clip_min: number;
  clip_max: number;
  kl_penalty_coef?: number;
  kl_discount_factor?: number;
}

/** rLLM bounds the product with the coefficient. */
const rllm = family<{ teacher_logprobs: number[]; student_logprobs: number[] }, RllmParams>(({ inputs, params }) => {
  const { clip_min, clip_max, kl_penalty_coef: coefficient = 1, kl_discount_factor: discount = 0 } = params;
  const [student, teacher] = [floats(inputs.student_logprobs), floats(inputs.teacher_logprobs)];
  const bounds = { low: clip_min / coefficient, high: clip_max / coefficient };
  const options = { estimator: "k1", coefficient, discount, bounds } as const;
  return {
    advantages: [...teacherAdvantages(student, teacher, [...student.keys()], offsetsOf([student.length]), options)],
  };
});

interface PrimeInputs {
  logprobs: number[];
  sampler_logprobs: number[];
  teacher_logprobs: number[];
  mask: number[];
}
interface PrimeParams {
  drop_below: number;
  kl_tau: number;
}

/** Importance sampling with the teacher's advantage, and twice k2 to the sampler. Sums over tokens. */
function primeLoss(
  { logprobs, sampler_logprobs: old, teacher_logprobs: theirs, mask }: PrimeInputs,
  { kl_tau, drop_below }: PrimeParams,
) {
  const one = (row: number[]) => [row];
  const [student, teacher] = [ragged(one(logprobs), one(mask)), ragged(one(theirs), one(mask))];
  const options = { estimator: "k1", coefficient: 1, discount: 0 } as const;
  const advantages = teacherAdvantages(student, teacher, places(one(mask)), raggedOffsets(one(mask)), options);
  const got = evaluateLoss(
    {
      ...{ logprobs: one(logprobs), old_logprobs: one(old), ref_logprobs: one(old), mask: one(mask) },
      advantages: spread(advantages, one(mask)),
    },
    {
      ...{ lossFn: "importance_sampling", aggMode: "seq-mean-token-sum" },
      constants: { max_probability_drop: -drop_below },
      kl: { weight: 2 * kl_tau, estimator: "k2" },
    },
  );
  return { loss_sum: got.loss, grad_logprobs: got.grad_logprob[0], ref_kl: -teacherKl(student, teacher) };
}

const prime = family<PrimeInputs, PrimeParams>(({ inputs, params }) => primeLoss(inputs, params));

interface AlignInputs {
  student_tokens: string[];
  teacher_tokens: string[];
  student_logprobs: number[];
  teacher_logprobs: number[];
  reasoning: string;
  content: string;
}

/** Upstream gives a token of the format the policy's own log-probability. */
const align = family<AlignInputs, object>(({ inputs }) => {
  const bytes = (tokens: readonly string[]) => tokens.map((token) => Buffer.from(token));
  const { student_tokens, teacher_tokens, student_logprobs: student, teacher_logprobs, reasoning, content } = inputs;
  const found = alignTeacher(bytes(student_tokens), bytes(teacher_tokens), teacher_logprobs, [reasoning, content]);
  const aligned = Array.from(found, (logprob, token) => (Number.isNaN(logprob) ? student[token]! : logprob));
  return { aligned, advantages: aligned.map((logprob, token) => logprob - student[token]!) };
});

interface VerlInputs {
  logprobs: Matrix;
  old_logprobs: Matrix;
  teacher_logprobs: Matrix;
  mask: Matrix;
}
interface VerlParams {
  loss_mode: string;
  loss_max_clamp: number | null;
  clip_ratio: number;
  clip_ratio_c: number;
  loss_agg_mode: "token-mean";
}

const boundsOf = (max: number | null) => (max === null ? undefined : { low: -max, high: max });

const verlSupervised = family<VerlInputs, VerlParams>(({ inputs, params }) => {
  const { mask } = inputs;
  const [student, teacher] = [ragged(inputs.logprobs, mask), ragged(inputs.teacher_logprobs, mask)];
  const loss = { kind: "estimator", estimator: klName(params.loss_mode)!, maxLoss: params.loss_max_clamp } as const;
  const tokens = Array.from(student, (logprob, token) => estimatorLoss(logprob, teacher[token]!, loss));
  const mean = (values: readonly number[]) => values.map((value) => value / values.length);
  return {
    loss: sumOf(mean(tokens.map(({ value }) => value))),
    grad_logprobs: spread(mean(tokens.map(({ slope }) => slope)), mask),
  };
});

const verlPolicyGradient = family<VerlInputs, VerlParams>(({ inputs, params }) => {
  const { mask, logprobs, teacher_logprobs: teacher } = inputs;
  const options = {
    ...{ estimator: klName(params.loss_mode)!, coefficient: 1, discount: 0, bounds: boundsOf(params.loss_max_clamp) },
  };
  const own = (rows: Matrix) =>
    ragged(
      rows,
      rows.map((row) => row.map(() => 1)),
    );
  const whole = mask.map((row) => row.map(() => 1));
  const advantages = spread(
    teacherAdvantages(own(logprobs), own(teacher), places(whole), raggedOffsets(whole), options),
    whole,
  );
  const got = evaluateLoss(
    { logprobs, old_logprobs: inputs.old_logprobs, advantages, mask },
    {
      ...{ lossFn: "ppo", epsClip: params.clip_ratio, aggMode: params.loss_agg_mode },
      constants: { clip_ratio_c: params.clip_ratio_c },
    },
  );
  return { advantages, loss: got.loss, grad_logprobs: got.grad_logprob };
});

const logSoftmax = (logits: readonly number[]): number[] => {
  const largest = Math.max(...logits);
  const total = largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0));
  return logits.map((logit) => logit - total);
};

/** The derivative by the logits, from that by some log-probabilities. */
function toLogits(logprobs: readonly number[], ids: readonly number[], slopes: ArrayLike<number>): number[] {
  const total = ids.reduce((sum, _, k) => sum + slopes[k]!, 0);
  const own = logprobs.map((logprob) => -Math.exp(logprob) * total);
  ids.forEach((id, k) => {
    own[id]! += slopes[k]!;
  });
  return own;
}

const at = (values: readonly number[], ids: readonly number[]) => Float64Array.from(ids, (id) => values[id]!);
const divergence = (
  name: DivergenceName,
  { student, teacher }: { student: readonly number[] | Float64Array; teacher: readonly number[] | Float64Array },
  options: DivergenceOptions = { beta: 0, tail: false },
) => {
  const compared: Compared = { student: Float64Array.from(student), teacher: Float64Array.from(teacher) };
  return divergences[name].evaluate(compared, options);
};
const sumOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0);

interface TopkInputs {
  student_logits: Matrix;
  teacher_ids: Matrix;
  teacher_logprobs: Matrix;
}

const verlTopk = family<TopkInputs, { topk: number; log_prob_min_clamp: number | null }>(({ inputs, params }) => {
  const { teacher_ids: ids, teacher_logprobs: teacher } = inputs;
  const { topk: count, log_prob_min_clamp: leastLogprob } = params;
  const student = inputs.student_logits.map(logSoftmax);
  const loss = { kind: "tokens", divergence: "forward_kl_topk", beta: 0, tail: false, count, leastLogprob } as const;
  const rows = student.map((logprobs, t) => {
    const compared = { student: at(logprobs, ids[t]!), teacher: Float64Array.from(teacher[t]!) };
    return { ...compared, ...tokensLoss(compared, { ...loss, maxLoss: null }) };
  });
  const mass = (logprobs: Iterable<number>) => sumOf(Array.from(logprobs, Math.exp));
  const bound = (logprob: number) => Math.max(logprob, leastLogprob ?? Number.NEGATIVE_INFINITY);
  return {
    // Upstream's is the value before its bound at 0.
    per_token: rows.map(({ student: own, teacher: theirs }) =>
      sumOf(Array.from(theirs, (logprob, k) => Math.exp(bound(logprob)) * (bound(logprob) - bound(own[k]!)))),
    ),
    loss_mean_clamped_at_0: sumOf(rows.map(({ value }) => value)) / rows.length,
    student_mass: rows.map((row) => mass(row.student)),
    teacher_mass: rows.map((row) => mass(row.teacher)),
    overlap_count: student.map((logprobs, t) => overlap(ids[t]!, mostLikely(logprobs, count))),
    grad_logits: student.map((logprobs, t) =>
      toLogits(logprobs, ids[t]!, rows[t]!.slopes).map((slope) => slope / rows.length),
    ),
  };
});

const mostLikely = (logprobs: readonly number[], count: number) =>
  [...logprobs.keys()].sort((a, b) => logprobs[b]! - logprobs[a]!).slice(0, count);

interface JsdInputs {
  student_logits: number[][][];
  teacher_logits: number[][][];
  mask: Matrix;
}

/** Over the whole vocabulary, nothing is left for a tail. */
const trlJsd = family<JsdInputs, { beta: number; temperature: number }>(({ inputs, params }) => {
  const count = sumOf(inputs.mask.flat());
  const { beta, temperature } = params;
  let loss = 0;
  const grad_logits = inputs.student_logits.map((rows, b) =>
    rows.map((logits, t) => {
      if (inputs.mask[b]![t] !== 1) return logits.map(() => 0);
      const [student, teacher] = [logits, inputs.teacher_logits[b]![t]!].map((row) =>
        logSoftmax(row.map((logit) => logit / temperature)),
      ) as [number[], number[]];
      const { value, slopes } = divergence("jsd", { student, teacher }, { beta, tail: false });
      loss += value / count;
      return toLogits(student, [...student.keys()], slopes).map((slope) => slope / (temperature * count));
    }),
  );
  return { loss, grad_logits };
});

interface SparseInputs {
  student_logprobs_at_ids: Matrix;
  teacher_logprobs: Matrix;
  mask: number[];
}
interface SparseParams {
  loss_add_tail: boolean;
  beta: number;
}

function trlForward(inputs: SparseInputs, params: SparseParams) {
  const { student_logprobs_at_ids: student, teacher_logprobs: teacher, mask } = inputs;
  const rows = student.map((logprobs, t) =>
    divergence("jsd", { student: logprobs, teacher: teacher[t]! }, { beta: 0, tail: params.loss_add_tail }),
  );
  const count = sumOf(mask);
  return {
    loss: sumOf(rows.map(({ value }, t) => (value * mask[t]!) / count)),
    grad_logprobs_at_ids: rows.map(({ slopes }, t) => Array.from(slopes, (slope) => (slope * mask[t]!) / count)),
  };
}

interface Top1Inputs {
  student_logprobs: Matrix;
  sampled_ids: number[];
  teacher_top1_ids: number[];
  teacher_top1_logprobs: number[];
  teacher_sampled_logprobs: number[];
  mask: number[];
}

function trlTop1(inputs: Top1Inputs, { beta, loss_add_tail: tail }: SparseParams) {
  const { student_logprobs: student, mask } = inputs;
  const count = sumOf(mask);
  const support = divergences.jsd.support({ beta });
  let loss = 0;
  const grad_logprobs = student.map((logprobs, t) => {
    const top = { id: inputs.teacher_top1_ids[t]!, logprob: inputs.teacher_top1_logprobs[t]! };
    const sampled = { id: inputs.sampled_ids[t]!, logprob: inputs.teacher_sampled_logprobs[t]! };
    const both = top.id === sampled.id ? [top] : [top, sampled];
    const tokens = support === "sampled" ? [sampled] : both;
    const ids = tokens.map(({ id }) => id);
    const compared = { student: at(logprobs, ids), teacher: Float64Array.from(tokens, ({ logprob }) => logprob) };
    const { value, slopes } = divergence("jsd", compared, { beta, tail });
    loss += (value * mask[t]!) / count;
    const own = logprobs.map(() => 0);
    ids.forEach((id, k) => {
      own[id] = (slopes[k]! * mask[t]!) / count;
    });
    return own;
  });
  return { loss, grad_logprobs };
}

const trlSparse = family<SparseInputs | Top1Inputs, SparseParams>(({ inputs, params }) =>
  "sampled_ids" in inputs ? trlTop1(inputs, params) : trlForward(inputs, params),
);

interface SoftInputs {
  mask: number[];
  teacher_prompt_length: number;
  topk_prompt_logprobs: ([id: number, logprob: number][] | null)[];
  student_logprobs_at_targets: Matrix;
}
interface SoftParams {
  topk: number;
  skip_first_n_tokens: number;
}

/** Sums over tokens. The first tokens of a reply that upstream skips are left out by the mask here. */
const cookbookTopk = family<SoftInputs, SoftParams>(({ inputs, params }) => {
  const {
    mask,
    topk_prompt_logprobs: rows,
    teacher_prompt_length: before,
    student_logprobs_at_targets: student,
  } = inputs;
  let reply = 0;
  const tokens = mask.map((flag) => {
    const index = flag === 1 ? reply++ : -1;
    return index >= params.skip_first_n_tokens ? (rows[before + index] ?? []) : [];
  });
  const padded = (values: ArrayLike<number>) => Array.from({ length: params.topk }, (_, k) => values[k] ?? 0);
  const evaluate = (name: DivergenceName) =>
    tokens.map((top, t) => {
      const own = student[t]!.slice(0, top.length);
      if (top.length === 0) return { value: 0, slopes: new Float64Array(0) };
      return divergence(name, { student: own, teacher: top.map(([, logprob]) => logprob) });
    });
  const [soft, reverse] = [evaluate("cross_entropy_topk"), evaluate("reverse_kl_topk")];
  return {
    target_tokens: tokens.map((top) => padded(top.map(([id]) => id))),
    weights: soft.map(({ slopes }) => padded(slopes.map((slope) => -slope))),
    cross_entropy_sum: sumOf(soft.map(({ value }) => value)),
    grad_cross_entropy: soft.map(({ slopes }) => padded(slopes)),
    reverse_kl_sum: sumOf(reverse.map(({ value }) => value)),
    grad_reverse_kl: reverse.map(({ slopes }) => padded(slopes)),
  };
});

export const distillationFamilies: Families = {
  "tinker/opd": cookbook,
  "tinker/topk": cookbookTopk,
  "rllm/opd": rllm,
  "rllm/align": align,
  "prime/ref_kl": prime,
  "verl/distill/supervised": verlSupervised,
  "verl/distill/policy-gradient": verlPolicyGradient,
  "verl/topk": verlTopk,
  "trl/jsd": trlJsd,
  "trl/sparse": trlSparse,
};
