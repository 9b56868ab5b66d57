/** The frame that all plots share: their size, background and axis labels. */
const plotSize = { width: 640, height: 240 };

/** The edges of the area inside the axes. */
export const plotArea = { left: 56, right: plotSize.width - 12, top: 30, bottom: plotSize.height - 34 };

/** @param parts SVG elements */
export function svg(title: string, parts: readonly string[]): string {
  const { width, height } = plotSize;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${width}" height="${height}" fill="white"/>`,
    svgLabel(plotArea.left, 18, title, "start"),
    ...parts,
    "</svg>\n",
  ].join("\n");
}

export const svgLabel = (x: number, y: number, text: string, anchor: "start" | "middle" | "end") =>
  `<text x="${x}" y="${y.toFixed(1)}" text-anchor="${anchor}">${text}</text>`;

/** A horizontal line across the plot. */
export const svgRule = (y: number, color: string) =>
  `<line x1="${plotArea.left}" y1="${y.toFixed(1)}" x2="${plotArea.right}" y2="${y.toFixed(1)}" stroke="${color}"/>`;
