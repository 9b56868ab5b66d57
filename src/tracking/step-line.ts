/** A finished step, or a finished validation, as one line. Pure text; the caller says how wide and in which colours. */
import type { Metrics, RunEvent } from "./events.ts";
import { formatChange, formatCount, formatNumber, formatRate, formatSeconds } from "./numbers.ts";
import { fit, type Segment } from "./segments.ts";
import { stepSummary } from "./step-summary.ts";

type Style = (text: string) => string;

/** What is coloured; `plainStyles` leaves all as it is. */
export interface Styles {
  dim: Style;
  bold: Style;
  good: Style;
  bad: Style;
  accent: Style;
}

const same: Style = (text) => text;
export const plainStyles: Styles = { dim: same, bold: same, good: same, bad: same, accent: same };

export type StepEnd = Extract<RunEvent, { type: "step-end" }>;

interface Look {
  /** Characters there are; Infinity when the line may be as long as it likes. */
  width?: number;
  styles?: Styles;
}

/**
 * `step  3/20  reward 0.342 (+0.09)  solved 5/16  groups 12/16 with signal  loss ..  kl ..  grad ..  lr ..  12.3 s (..)  1,234 tok/s`.
 * Figures that the step does not have are left out; so are the least important ones where the width is short.
 * @param previousReward the step before, for the change in parentheses
 */
export function stepLine(
  event: StepEnd,
  previousReward?: number,
  { width = Number.POSITIVE_INFINITY, styles = plainStyles }: Look = {},
): string {
  const {
    reward,
    solved,
    tasks,
    informative,
    groups,
    loss,
    kl,
    gradNorm,
    learningRate,
    sampling,
    training,
    validation,
    saving,
    tokensPerSecond,
  } = stepSummary(event.metrics);

  const digits = String(event.total).length;
  const change = reward !== undefined && previousReward !== undefined ? reward - previousReward : undefined;
  const segments: Segment[] = [
    { text: `step ${String(event.step).padStart(digits)}/${event.total}`, weight: 0, style: styles.bold },
  ];
  const add = (weight: number, text: string | undefined, style?: Style, close = false) => {
    if (text !== undefined) segments.push({ text, weight, close, ...(style ? { style } : {}) });
  };
  const named = (name: string, value: number | undefined, format = formatNumber) =>
    value === undefined ? undefined : `${name} ${format(value)}`;

  add(0, named("reward", reward), styles.accent);
  if (change !== undefined) add(4, `(${formatChange(change)})`, trend(change, styles), true);
  if (solved !== undefined && tasks !== undefined) add(2, `solved ${aligned(solved, tasks)}`);
  if (informative !== undefined && groups !== undefined) {
    add(3, `groups ${aligned(informative, groups)} with signal`, informative === 0 ? styles.bad : undefined);
  }
  add(8, named("loss", loss), styles.dim);
  add(9, named("kl", kl), styles.dim);
  add(7, named("grad", gradNorm), gradNorm === undefined || Number.isFinite(gradNorm) ? styles.dim : styles.bad);
  add(10, named("lr", learningRate, formatRate), styles.dim);
  add(1, formatSeconds(event.seconds).padStart(6));
  const notable = (name: string, value = 0) =>
    value >= 0.05 * event.seconds && value >= 0.1 ? named(name, value, oneDecimal) : undefined;
  const split = [
    named("sample", sampling, oneDecimal),
    named("train", training, oneDecimal),
    notable("validate", validation),
    notable("save", saving),
  ];
  const parts = split.filter((part) => part !== undefined);
  if (parts.length > 0) add(6, `(${parts.join(" ")})`, styles.dim, true);
  if (tokensPerSecond !== undefined) add(5, `${formatCount(tokensPerSecond)} tok/s`);
  return fit(segments, width);
}

const trend = (change: number, styles: Styles) =>
  change > 0.005 ? styles.good : change < -0.005 ? styles.bad : styles.dim;

/** ` 5/16`: as wide as the whole, so that lines stand in columns. */
const aligned = (part: number, whole: number) => `${String(part).padStart(String(whole).length)}/${whole}`;

const oneDecimal = (value: number) => value.toFixed(1);

/** `validation  after step 5  reward 0.531  gsm8k/pass@1 0.531  4.2 s`. */
export function validationLine(
  event: { step: number; metrics: Metrics; seconds: number },
  { width = Number.POSITIVE_INFINITY, styles = plainStyles }: Look = {},
): string {
  const segments: Segment[] = [
    { text: "validation", weight: 0, style: styles.bold },
    { text: `after step ${event.step}`, weight: 2 },
    ...validationValues(event.metrics).map(([name, value], index) => ({
      text: `${name.slice("val/".length)} ${formatNumber(value)}`,
      weight: index === 0 ? 0 : 3 + index,
      style: styles.accent,
    })),
    { text: formatSeconds(event.seconds), weight: 1 },
  ];
  return fit(segments, width);
}

/** The figures of a validation (`val/...`) that say something: no count of zero unknown outcomes, no reward twice. */
export function validationValues(metrics: Metrics): [name: string, value: number][] {
  const reward = metrics["val/reward"];
  return Object.entries(metrics).filter(([name, value]) => {
    const empty = name === "val/unknown" && value === 0;
    const repeated = name !== "val/reward" && name.endsWith("/reward") && value === reward;
    return name.startsWith("val/") && !empty && !repeated;
  });
}
