/** Small parts that all pages use. */
import type { ComponentChildren } from "preact";
import type { JsonNumber } from "../../src/apps/view/queries/parameters.ts";
import type { RunState } from "../../src/apps/view/queries/run.ts";
import type { ApiError } from "../../src/apps/view/server.ts";
import { href, setParameters } from "../state/address.ts";
import { useKeys } from "../state/keys.ts";
import { short, signed, toNumber } from "./numbers.ts";
import { printable } from "./printable.ts";

export const Link = ({
  to,
  children,
  ...rest
}: {
  to: string;
  children: ComponentChildren;
  class?: string;
  title?: string;
  "aria-current"?: "page" | undefined;
  "aria-label"?: string;
}) => (
  <a href={href(to)} {...rest}>
    {children}
  </a>
);

/** Untrusted text. */
export const Text = ({ children }: { children: string }) => <bdi>{printable(children)}</bdi>;

function Problem({ error, hint }: ApiError) {
  return (
    <div class="problem" role="alert">
      <b>{printable(error)}</b>
      {hint && <p>{printable(hint)}</p>}
    </div>
  );
}

/** Shown while an answer is loading, or if the request failed. */
export const Pending = ({ error }: { error: ApiError | undefined }) =>
  error ? (
    <Problem {...error} />
  ) : (
    <p class="muted pending" role="status">
      Loading…
    </p>
  );

export const Empty = ({ children }: { children: ComponentChildren }) => <p class="empty">{children}</p>;

const states: Readonly<Record<RunState, string>> = {
  live: "live",
  done: "done",
  stopped: "stopped",
  failed: "failed",
  interrupted: "interrupted",
};

export const StateBadge = ({ state }: { state: RunState }) => (
  <span class={`badge state-${state}`}>{states[state]}</span>
);

/** A reward with a bar from 0 to 1; "unknown" is not 0. */
export function Reward({ value }: { value: JsonNumber | null }) {
  const number = toNumber(value);
  if (number === null)
    return (
      <span class="reward unknown" title="unknown: no grader gave a reward">
        ?
      </span>
    );
  const share = Math.max(0, Math.min(1, number));
  return (
    <span class="reward">
      <span>{short(number)}</span>
      <i style={{ inlineSize: `${share * 100}%` }} />
    </span>
  );
}

export function Advantage({ value }: { value: JsonNumber | null }) {
  const number = toNumber(value);
  const kind = number === null || Math.abs(number) < 1e-8 ? "zero" : number > 0 ? "positive" : "negative";
  return <span class={`advantage ${kind}`}>{signed(value)}</span>;
}

interface StepSliderProps {
  steps: readonly number[];
  step: number;
  onStep: (step: number) => void;
  label?: string;
  /** Answers [ and ]. */
  keys?: boolean;
}

/** A slider over the existing steps. */
export function StepSlider({ steps, step, onStep, label = "step", keys = true }: StepSliderProps) {
  const index = Math.max(0, steps.indexOf(step));
  const move = (by: number) => {
    const next = steps[Math.max(0, Math.min(steps.length - 1, index + by))];
    if (next !== undefined && next !== step) onStep(next);
  };
  useKeys(keys ? { "[": () => move(-1), "]": () => move(1) } : {});
  return (
    <div class="slider">
      <button type="button" onClick={() => move(-1)} disabled={index === 0} aria-label={`previous ${label}`}>
        ‹
      </button>
      <input
        type="range"
        min={0}
        max={Math.max(0, steps.length - 1)}
        value={index}
        aria-label={label}
        aria-valuetext={`${label} ${step}`}
        onInput={(event) => onStep(steps[Number(event.currentTarget.value)] ?? step)}
      />
      <button type="button" onClick={() => move(1)} disabled={index >= steps.length - 1} aria-label={`next ${label}`}>
        ›
      </button>
      <output>
        {label} <b>{step}</b>
        <span class="muted"> of {steps.at(-1) ?? 0}</span>
      </output>
    </div>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly { value: T; label: string; title?: string; disabled?: boolean }[];
  onChange: (value: T) => void;
}

/** On a narrow screen the row scrolls, and the chosen option may be outside of it. */
function scrollIntoRow(button: HTMLButtonElement | null): void {
  const row = button?.parentElement;
  if (row && row.scrollWidth > row.clientWidth) {
    row.scrollLeft = button.offsetLeft - row.offsetLeft - (row.clientWidth - button.offsetWidth) / 2;
  }
}

/** A choice between a few options, as a row of buttons. */
export function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <fieldset class="choice">
      <legend class="hidden">{label}</legend>
      {options.map((option) => (
        <button
          type="button"
          key={option.value}
          ref={option.value === value ? scrollIntoRow : null}
          aria-pressed={option.value === value}
          disabled={option.disabled}
          title={option.title}
          onClick={() => onChange(option.value)}
        >
          {option.label}
        </button>
      ))}
    </fieldset>
  );
}

/** Episodes of training or of validation, as the address says. */
export const KindChoice = ({ kind }: { kind: "train" | "validation" }) => (
  <Choice
    label="kind"
    value={kind}
    options={[
      { value: "train", label: "training" },
      { value: "validation", label: "validation" },
    ]}
    onChange={(chosen) => setParameters({ kind: chosen === "train" ? null : chosen, step: null })}
  />
);
