/** The settings of all charts of a page: smoothing, the horizontal axis, and its range. */
import { setParameters } from "../state/address.ts";
import { type AxisName, axis, axisNames, maxSmooth, setZoom, smoothing, zoom } from "../state/chart-settings.ts";
import { Choice } from "./basics.tsx";
import { short } from "./numbers.ts";

interface ChartControlsProps {
  /** The points of the charts, in their order. */
  steps: readonly number[];
  /** The axes that the run recorded. */
  known: readonly AxisName[];
  /** Whether the points are steps, so that a range can be typed. */
  bySteps?: boolean;
}

export function ChartControls({ steps, known, bySteps = true }: ChartControlsProps) {
  const weight = smoothing();
  const [first = 0, last = 0] = [steps[0], steps.at(-1)];
  const shown = zoom();
  const [from, to] = shown ?? [first, last];
  return (
    <fieldset class="chart-controls">
      <legend class="hidden">charts</legend>
      <label class="field">
        smoothing
        <input
          type="range"
          min={0}
          max={maxSmooth}
          step={0.01}
          value={weight}
          onInput={({ currentTarget: { value } }) => setParameters({ smooth: Number(value) === 0 ? null : value })}
        />
        <output>{short(weight)}</output>
      </label>
      <div class="field">
        <span aria-hidden="true">by</span>
        <Choice
          label="horizontal axis"
          value={known.includes(axis()) ? axis() : "step"}
          options={axisNames.map((name) => ({
            value: name,
            label: name,
            title: titles[name],
            disabled: !known.includes(name),
          }))}
          onChange={(x) => setParameters({ x: x === "step" ? null : x, ...(bySteps ? {} : { zoom: null }) })}
        />
      </div>
      <div class="field">
        {bySteps && (
          <>
            steps
            <Bound label="first step shown" value={from} onChange={(value) => setZoom([value, to])} />
            to
            <Bound label="last step shown" value={to} onChange={(value) => setZoom([from, value])} />
          </>
        )}
        {shown && (
          <button type="button" onClick={() => setZoom(undefined)}>
            Reset zoom
          </button>
        )}
        {!shown && <small>Drag across a chart to zoom; a double click resets.</small>}
      </div>
    </fieldset>
  );
}

const titles: Readonly<Record<AxisName, string>> = {
  step: "training steps",
  tokens: "tokens sampled for training so far",
  time: "time spent in steps so far, without pauses between runs",
};

interface BoundProps {
  label: string;
  value: number;
  onChange: (value: number) => void;
}

const Bound = ({ label, value, onChange }: BoundProps) => (
  <input
    type="number"
    min={0}
    aria-label={label}
    value={value}
    onChange={({ currentTarget }) => onChange(Math.max(0, Math.round(currentTarget.valueAsNumber || 0)))}
  />
);
