/** Pictures of 64 x 64 pixels with colored shapes, drawn from seeds. */
import { crc32, deflateSync } from "node:zlib";
import { generated, randomInteger } from "hone-rl";

const colors = { red: [220, 40, 40], green: [40, 170, 60], blue: [50, 80, 220], yellow: [230, 200, 40] } as const;
/** Whether a point of the unit square is inside. */
const shapes = {
  circle: (x: number, y: number) => (x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.25,
  square: () => true,
  triangle: (x: number, y: number) => Math.abs(x - 0.5) < y / 2,
};

export interface Picture {
  color: keyof typeof colors;
  shape: keyof typeof shapes;
  /** Which of the 16 cells have a shape. */
  cells: number[];
}

export const pictures = (name: string, size: number) =>
  generated(name, size, (_index, random): Picture => {
    const one = <T extends string>(from: Record<T, unknown>) =>
      Object.keys(from)[randomInteger(random, 0, Object.keys(from).length - 1)] as T;
    const cells = Array.from({ length: randomInteger(random, 1, 4) }, () => randomInteger(random, 0, 15));
    return { color: one(colors), shape: one(shapes), cells };
  });

/** A PNG file. */
export function draw({ color, shape, cells }: Picture): Buffer {
  const pixel = (x: number, y: number): readonly number[] => {
    const [left, top] = [(x % 16) - 2, (y % 16) - 2];
    const inside = left >= 0 && left < 12 && top >= 0 && top < 12 && cells.includes((y >> 4) * 4 + (x >> 4));
    return inside && shapes[shape]((left + 0.5) / 12, (top + 0.5) / 12) ? colors[color] : [20, 20, 30];
  };
  const rows = Array.from({ length: 64 }, (_, y) => [0, ...Array.from({ length: 64 }, (_, x) => pixel(x, y)).flat()]);
  return png(64, 64, Buffer.from(rows.flat()));
}

/** `scanlines`: for each row a 0 and the RGB values of its pixels. */
function png(width: number, height: number, scanlines: Buffer): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2], 8); // 8 bits, RGB
  const chunks = [chunk("IHDR", header), chunk("IDAT", deflateSync(scanlines)), chunk("IEND", Buffer.alloc(0))];
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), ...chunks]);
}

function chunk(name: string, content: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(name), content]);
  const framed = Buffer.alloc(body.length + 8);
  framed.writeUInt32BE(content.length, 0);
  framed.set(body, 4);
  framed.writeUInt32BE(crc32(body), body.length + 4);
  return framed;
}
