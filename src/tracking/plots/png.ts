/** Plots as PNG, for programs that do not show SVG. */

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
