/** The subscriber that writes plots as SVG and PNG files, and shows them to the loggers. */
import { join } from "node:path";
import { writeWhole } from "../../files/durable-files.ts";
import { makeFolder } from "../../files/make-folder.ts";
import type { RunEvent, Subscriber } from "../events.ts";
import { collectCurves, lengthsSvg } from "./svg-plots.ts";

export interface PlotOptions {
  directory: string;
  /** Number of steps from one drawing of the curves to the next; they are also drawn at the end. */
  every: number;
  /** Undefined: only SVG files are written. */
  toPng: ToPng | undefined;
  /** Takes a `plot` event for each PNG file. */
  emit: (event: RunEvent) => void;
}

/**
 * Writes `reward`, `length` and `entropy`, the curves so far, and `lengths-step-000012`, how many replies of a step have how
 * many tokens, each as `.svg` and `.png`. Never throws: what cannot be written is a warning.
 */
export function plotsSubscriber({ directory, every, toPng, emit }: PlotOptions): Subscriber {
  const curves = collectCurves();
  let last = 0;
  let drawn = 0;

  function write(step: number, name: string, svg: string, file = name): void {
    try {
      makeFolder(directory);
      writeWhole(join(directory, `${file}.svg`), [svg]);
      if (toPng === undefined) return;
      const png = toPng(svg);
      const path = join(directory, `${file}.png`);
      writeWhole(path, [png.bytes]);
      emit({ type: "plot", step, name, file: path, ...png });
    } catch (error) {
      const reason = error instanceof Error ? error.message : error;
      emit({ type: "warning", text: `the plot ${file} could not be written: ${reason}` });
    }
  }

  function drawCurves(): void {
    if (drawn === last) return;
    drawn = last;
    for (const { name, svg } of curves.draw()) write(last, name, svg);
  }

  return {
    event(event) {
      if (event.type === "run-start") for (const { step, metrics } of event.history) curves.add(step, metrics);
      if (event.type === "distributions") {
        const { step, values, limit } = event;
        const file = `lengths-step-${String(step).padStart(6, "0")}`;
        write(step, "lengths", lengthsSvg(step, values.response_length, limit), file);
      }
      if (event.type === "step-end") {
        last = event.step;
        curves.add(event.step, event.metrics);
        if (event.step % every === 0) drawCurves();
      }
      if (event.type === "run-end") drawCurves();
    },
    async close() {},
  };
}

interface Png {
  bytes: Uint8Array;
  width: number;
  height: number;
}

export type ToPng = (svg: string) => Png;

/** Twice the size of the SVG, for screens with a high resolution. */
const zoom = 2;

/**
 * Opens the renderer, which uses the fonts of the machine.
 * @returns undefined, after a warning, if there is no renderer for this machine
 */
export async function openPng(warn: (text: string) => void): Promise<ToPng | undefined> {
  try {
    const { Resvg } = await import("@resvg/resvg-js");
    const parse = (svg: string) => new Resvg(svg, { fitTo: { mode: "zoom", value: zoom } });
    const text = parse('<svg xmlns="http://www.w3.org/2000/svg"><text y="9" font-family="sans-serif">0</text></svg>');
    if (text.getBBox() === undefined) {
      warn("plots as PNG files have no labels, because this machine has no fonts: install one, e.g. fonts-dejavu-core");
    }
    return (svg) => {
      const image = parse(svg).render();
      return { bytes: image.asPng(), width: image.width, height: image.height };
    };
  } catch (error) {
    const reason = error instanceof Error ? error.message : error;
    warn(`plots are written as SVG only: @resvg/resvg-js, which draws PNG files, could not be loaded: ${reason}`);
    return undefined;
  }
}
