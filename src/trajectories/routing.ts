/** The experts of a mixture that sampled a sequence, for training to repeat (`router_replay=R3`). */
import { UserError } from "../errors.ts";

/** The experts of a reply and of the prompt before it, as vLLM sends them: half as long as arrays of numbers would be. */
export interface RoutingPart {
  /** Position of its first token in the sequence. */
  first: number;
  /** NumPy's .npy format in base64: whole numbers `[tokens][layers][experts of a token]`. */
  npy: string;
}

export interface Routing {
  /** `[L-1][layers][experts of a token]`; -1: unknown. The last token of a sequence is not computed. */
  experts: Int16Array;
  layers: number;
  expertsOfToken: number;
}

/**
 * The experts of a sequence. Of several parts, the first that has a token counts: it sampled the next one.
 *
 * @param tokens of the sequence
 */
export function joinRouting(parts: readonly RoutingPart[], tokens: number): Routing | undefined {
  const read = parts.map(({ first, npy }) => ({ first, ...readNpy(npy) }));
  const [one] = read;
  if (one === undefined) return undefined;
  const [, layers = 0, expertsOfToken = 0] = one.shape;
  const width = layers * expertsOfToken;
  const experts = new Int16Array((tokens - 1) * width).fill(-1);
  for (const { first, shape, values } of read.reverse()) {
    if (shape[1] !== layers || shape[2] !== expertsOfToken || first * width + values.length > experts.length) {
      throw new Error(`the inference server sent experts ${shape} from token ${first} of ${tokens}`);
    }
    experts.set(values, first * width);
  }
  return { experts, layers, expertsOfToken };
}

const arrays = { "|u1": Uint8Array, "<u2": Uint16Array, "<i4": Int32Array } as const;

/** @throws UserError for a file that vLLM does not send */
function readNpy(base64: string): { shape: number[]; values: Uint8Array | Uint16Array | Int32Array } {
  const bytes = Buffer.from(base64, "base64");
  const end = 10 + (bytes.length < 10 ? 0 : bytes.readUInt16LE(8));
  const header = bytes.toString("latin1", 10, end);
  const type = /'descr': '([^']*)'/.exec(header)?.[1] as keyof typeof arrays;
  const shape = /'shape': \(([^)]*)\)/.exec(header)?.[1]?.split(",").map(Number);
  const Values = Object.hasOwn(arrays, type) ? arrays[type] : undefined;
  const size = shape?.length === 3 && Values ? shape.reduce((a, b) => a * b) * Values.BYTES_PER_ELEMENT : undefined;
  if (!Values || !shape || size !== bytes.length - end || header.includes("'fortran_order': True")) {
    throw new UserError(`the inference server sent experts in an unknown form: ${header.trim().slice(0, 200)}`);
  }
  // Copied so that the array starts at an aligned address.
  return { shape, values: new Values(Uint8Array.from(bytes.subarray(end)).buffer) };
}
