/**
 * Runs a formula over arrays by WebAssembly's vector instructions, four float32 or two float64 at a time, in blocks that
 * stay in the processor's cache.
 */
import { exponential } from "./exponential.ts";
import { type Condition, Lanes, type Node } from "./lanes.ts";
import type { Code, Precision } from "./wasm.ts";
import * as wasm from "./wasm.ts";

// Node has it, its types do not.
declare namespace WebAssembly {
  class Memory {
    constructor(size: { initial: number });
    readonly buffer: ArrayBuffer;
  }
  class Module {
    constructor(bytes: Uint8Array);
  }
  class Instance {
    constructor(module: Module, imports: { m: { m: Memory } });
    readonly exports: Record<string, unknown>;
  }
}

export interface Formula {
  /** What is written of each token. */
  output: Lanes;
  /** What is added up over all tokens, in float64. */
  sums: readonly Lanes[];
  /** What is counted where it holds. */
  counts: readonly Condition[];
}

/** Figures of an array from here on. */
export interface Span {
  values: Float32Array | Float64Array | Uint8Array;
  from: number;
}

export interface Kernel {
  /** Writes `[count]` of `output` at `to.from`, and answers with the sums, then the counts. */
  run(
    count: number,
    inputs: Readonly<Record<string, Span | null>>,
    settings: Readonly<Record<string, number>>,
    to: Span,
  ): readonly number[];
}

/** Tokens of a block: with it all arrays fit the second-level cache. */
const blockSize = 4096;
/** Byte addresses: 16 bytes a sum or count, the settings, then one slot an array, of which the first is the output's. */
const settingsAt = 512;
const slotsAt = 1024;
const slotBytes = blockSize * 8;
const slots = 6;
const memory = new WebAssembly.Memory({ initial: Math.ceil((slotsAt + slots * slotBytes) / 65536) });
const sumsView = new Float64Array(memory.buffer, 0, settingsAt / 8);
const countsView = new Int32Array(memory.buffer, 0, settingsAt / 4);
const settingsView = new Float64Array(memory.buffer, settingsAt, (slotsAt - settingsAt) / 8);
const views = {
  float32: Array.from({ length: slots }, (_, slot) => new Float32Array(memory.buffer, addressOf(slot), blockSize)),
  float64: Array.from({ length: slots }, (_, slot) => new Float64Array(memory.buffer, addressOf(slot), blockSize)),
};

function addressOf(slot: number): number {
  return slotsAt + slot * slotBytes;
}

/** The last tokens of an array are filled up with zeros in all inputs, which must add nothing to any sum or count. */
export function compile(formula: Formula, precision: Precision): Kernel {
  const { code, inputs: arrays, settings: names } = programOf(formula, precision);
  const module = new WebAssembly.Module(code);
  const run = new WebAssembly.Instance(module, { m: { m: memory } }).exports.run as (bytes: number) => void;
  const own = views[precision];
  const result = own[0]!;
  const bytes = precision === "float32" ? 4 : 8;
  const perVector = 16 / bytes;

  return {
    run(count, inputs, settings, to) {
      const totals: number[] = Array(formula.sums.length + formula.counts.length).fill(0);
      for (let index = 0; index < names.length; index++) settingsView[index] = settings[names[index]!]!;
      for (let done = 0; done < count; done += blockSize) {
        const size = Math.min(blockSize, count - done);
        const padded = Math.ceil(size / perVector) * perVector;
        for (let index = 0; index < arrays.length; index++) {
          const { values, from } = inputs[arrays[index]!]!;
          const slot = own[index + 1]!;
          slot.set(values.subarray(from + done, from + done + size));
          slot.fill(0, size, padded);
        }
        run(padded * bytes);
        to.values.set(size === blockSize ? result : result.subarray(0, size), to.from + done);
        for (let index = 0; index < totals.length; index++) {
          totals[index]! +=
            index < formula.sums.length ? sumsView[2 * index]! + sumsView[2 * index + 1]! : counted(index);
        }
      }
      return totals;
    },
  };
}

/** Also of two counts of 64 bits, whose upper halves are 0. */
const counted = (index: number) => countsView.subarray(4 * index, 4 * index + 4).reduce((sum, lane) => sum + lane);

interface Program {
  code: Uint8Array;
  /** In the order of their slots, from the second on. */
  inputs: string[];
  settings: string[];
}

/** The first local is the number of bytes of an array, the second the position within. */
function programOf({ output, sums, counts }: Formula, precision: Precision): Program {
  const [position, firstLanes] = [1, 2];
  let locals = firstLanes;
  const before: number[] = [];
  const body: number[] = [];
  const inputs: string[] = [];
  const settings: string[] = [];
  /** By what they compute, so that nothing is computed twice. */
  const placed = new Map<string, Figure>();

  function place(node: Node): Figure {
    if (node.kind === "constant") return keep(`${node.value}`, true, () => wasm.lanesOf(node.value, precision));
    if (node.kind === "setting") {
      return keep(node.name, true, () => wasm.spread(settingsAt + 8 * (settings.push(node.name) - 1), precision));
    }
    if (node.kind === "input") {
      const load = () => [...wasm.getLocal(position), ...wasm.load(addressOf(inputs.push(node.name)))];
      return keep(`[${node.name}]`, false, load);
    }
    const { operation } = node;
    if (operation === "exp" || operation === "expm1") {
      return place(exponential(operation, new Lanes(node.operands[0]!), precision).node);
    }
    const operands = node.operands.map(place);
    const code = () => [
      ...operands.flatMap(({ local }) => wasm.getLocal(local)),
      ...wasm.instructionOf(operation, precision),
    ];
    const fixed = operands.every((operand) => operand.fixed);
    return keep(`${operation}(${operands.map(({ local }) => local)})`, fixed, code);
  }

  /** What is the same for all tokens is computed before the loop. */
  function keep(key: string, fixed: boolean, code: () => Code): Figure {
    const known = placed.get(key);
    if (known !== undefined) return known;
    const figure = { local: locals++, fixed };
    (fixed ? before : body).push(...code(), ...wasm.setLocal(figure.local));
    placed.set(key, figure);
    return figure;
  }

  const result = place(output.node).local;
  body.push(...wasm.getLocal(position), ...wasm.getLocal(result), ...wasm.store(addressOf(0)));
  const totals = sums.map((figure) => {
    const { local } = place(figure.node);
    const sum = locals++;
    for (const pair of wasm.pairs(local, precision)) {
      body.push(...pair, ...wasm.getLocal(sum), ...wasm.instructionOf("plus", "float64"), ...wasm.setLocal(sum));
    }
    return sum;
  });
  for (const condition of counts) {
    const { local } = place(condition.node);
    const count = locals++;
    body.push(...wasm.getLocal(count), ...wasm.getLocal(local), ...wasm.countUp[precision], ...wasm.setLocal(count));
    totals.push(count);
  }
  const after = totals.flatMap((local, index) => [
    ...wasm.int32(0),
    ...wasm.getLocal(local),
    ...wasm.store(16 * index),
  ]);
  if (inputs.length >= slots)
    throw new Error(`a formula of ${inputs.length} inputs, and there is room for ${slots - 1}`);
  const code = [...before, ...wasm.loop(body), ...after];
  return { code: wasm.moduleOf(locals - firstLanes, code), inputs, settings };
}

interface Figure {
  /** The local that has it. */
  local: number;
  /** It is the same for all tokens. */
  fixed: boolean;
}
