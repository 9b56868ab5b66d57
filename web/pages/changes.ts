/** What changed at a step, in one sentence. */
import type { Curves } from "../../src/apps/view/queries/curves.ts";
import { short, toNumber } from "../parts/numbers.ts";

/** Besides the reward: metrics that are mentioned if they changed more than usual. */
const watched: Readonly<Record<string, string>> = {
  "response_length/mean": "the reply length",
  "response_length/clip_ratio": "the share of cut-off replies",
  "actor/entropy": "the entropy",
  "actor/grad_norm": "the gradient norm",
  "actor/kl_loss": "the KL to the reference",
  "distillation/teacher_kl": "the KL to the teacher",
  "rollout/kl_sampler_trainer_k3": "the KL of sampler and trainer",
  "actor/pg_clipfrac": "the share of clipped tokens",
  "batch/solve_none": "the share of unsolved tasks",
  "batch/solve_all": "the share of fully solved tasks",
  "batch/failed_episodes": "the number of failed episodes",
  "async/staleness_mean": "the staleness",
  "perf/throughput": "the throughput",
};

/** The earlier changes that tell what is usual. */
const compared = { min: 3, max: 20 };
/**
 * A change is unusual from this multiple of the median change, if it is also this share of the value. With too few earlier
 * changes, from a larger share.
 */
const unusual = { times: 3, share: 0.05, shareAlone: 0.25 };
const maxMentioned = 3;

/** E.g. `Against step 4, the mean reward rose from 0.4 to 0.5; the entropy fell unusually, from 2 to 1.` Undefined for the first step. */
export function changeSentence({ steps, columns }: Curves, index: number): string | undefined {
  if (index < 1) return undefined;
  const columnOf = (name: string) => (columns[name] ?? []).map(toNumber);
  const reward = changeAt(columnOf("reward/mean"), index);
  const others = Object.entries(watched)
    .flatMap(([name, noun]) => {
      const change = changeAt(columnOf(name), index);
      return change === undefined || change.size < 1 || isSame(change) ? [] : [{ noun, change }];
    })
    .sort((left, right) => right.change.size - left.change.size)
    .slice(0, maxMentioned)
    .map(({ noun, change }, place) => `${noun} ${verb(change)}${place === 0 ? " unusually," : ""} ${fromTo(change)}`);
  const known = reward === undefined ? [] : [`the mean reward ${verb(reward)} ${fromTo(reward)}`];
  const nothing = reward === undefined ? "nothing changed unusually" : "nothing else changed unusually";
  const unusually = [others.slice(0, -1).join(", "), others.at(-1) ?? nothing].filter(Boolean).join(" and ");
  return `Against step ${steps[index - 1]}, ${[...known, unusually].join("; ")}.`;
}

interface Change {
  before: number;
  now: number;
  /** From 1: unusual. */
  size: number;
}

function changeAt(values: readonly (number | null)[], index: number): Change | undefined {
  const differences: number[] = [];
  for (let at = Math.max(1, index - compared.max); at < index; at++) {
    const [before, now] = [values[at - 1], values[at]];
    if (isKnown(before) && isKnown(now)) differences.push(Math.abs(now - before));
  }
  const [before, now] = [values[index - 1], values[index]];
  if (!isKnown(before) || !isKnown(now)) return undefined;
  const usual =
    differences.length < compared.min
      ? unusual.shareAlone * Math.abs(before)
      : unusual.times * differences.sort((left, right) => left - right)[Math.floor(differences.length / 2)]!;
  const change = Math.abs(now - before);
  return { before, now, size: change <= unusual.share * Math.abs(before) ? 0 : change / usual };
}

const isKnown = (value: number | null | undefined): value is number => value != null && Number.isFinite(value);

/** Also after rounding. */
const isSame = ({ before, now }: Change) => short(before) === short(now);
const verb = (change: Change) => (isSame(change) ? "stayed" : change.now > change.before ? "rose" : "fell");
const fromTo = (change: Change) =>
  isSame(change) ? `at ${short(change.now)}` : `from ${short(change.before)} to ${short(change.now)}`;
