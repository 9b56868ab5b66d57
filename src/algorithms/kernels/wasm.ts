/** What a kernel needs of WebAssembly's binary format (https://webassembly.github.io/spec/core/binary/). */
import type { Operation } from "./lanes.ts";

export type Precision = "float32" | "float64";

export type Code = readonly number[];

/** Of the formulas' operations whose code is one instruction. */
const instructions: Readonly<Record<Precision, Readonly<Partial<Record<Operation, Code>>>>> = {
  float32: {
    ...{ plus: simd(0xe4), minus: simd(0xe5), times: simd(0xe6), over: simd(0xe7) },
    // "Pseudo" minimum and maximum: the first operand, unless the second is certainly the one.
    ...{ atMost: simd(0xea), atLeast: simd(0xeb) },
    ...{ negated: simd(0xe1), abs: simd(0xe0), nearest: simd(0x6a) },
    ...{ above: simd(0x44), below: simd(0x43), equals: simd(0x41) },
  },
  float64: {
    ...{ plus: simd(0xf0), minus: simd(0xf1), times: simd(0xf2), over: simd(0xf3) },
    ...{ atMost: simd(0xf6), atLeast: simd(0xf7) },
    ...{ negated: simd(0xed), abs: simd(0xec), nearest: simd(0x94) },
    ...{ above: simd(0x4a), below: simd(0x49), equals: simd(0x47) },
  },
};
const onBits: Readonly<Partial<Record<Operation, Code>>> = {
  ...{ and: simd(0x4e), andNot: simd(0x4f), or: simd(0x50), choose: simd(0x52) },
};

/** Code that takes its operands from the stack, in their order. */
export function instructionOf(operation: Exclude<Operation, "exp" | "expm1">, precision: Precision): Code {
  if (operation === "powerOfTwo") return powerOfTwo[precision];
  const code = onBits[operation] ?? instructions[precision][operation];
  if (code === undefined) throw new Error(`no instruction for "${operation}"`);
  return code;
}

/** By writing the exponent's bits: those of `1.5 * 2^mantissa + bias + k` end with those of `bias + k`. */
const powerOfTwo: Record<Precision, Code> = {
  float32: [...lanesOf(1.5 * 2 ** 23 + 127, "float32"), ...simd(0xe4), ...int32(23), ...simd(0xab)],
  float64: [...lanesOf(1.5 * 2 ** 52 + 1023, "float64"), ...simd(0xf0), ...int32(52), ...simd(0xcb)],
};

function simd(operation: number): Code {
  return [0xfd, ...unsigned(operation)];
}
export function int32(value: number): Code {
  return [0x41, ...signed(value)];
}
export const getLocal = (index: number): Code => [0x20, ...unsigned(index)];
export const setLocal = (index: number): Code => [0x21, ...unsigned(index)];
/** @param at byte address beside the one on the stack */
export const load = (at: number): Code => [...simd(0), 4, ...unsigned(at)];
export const store = (at: number): Code => [...simd(0x0b), 4, ...unsigned(at)];

/** The number in all lanes. */
export function lanesOf(value: number, precision: Precision): Code {
  const bytes = precision === "float32" ? Float32Array.of(value, value, value, value) : Float64Array.of(value, value);
  return [...simd(0x0c), ...new Uint8Array(bytes.buffer)];
}

/** The float64 at an address, in all lanes. */
export const spread = (at: number, precision: Precision): Code => [
  ...[...int32(0), 0x2b, 3, ...unsigned(at)],
  ...(precision === "float32" ? [0xb6, ...simd(0x13)] : simd(0x14)),
];

/** Takes a condition, whose lanes are -1 where it holds, from what is below it on the stack: both as integers. */
export const countUp: Readonly<Record<Precision, Code>> = { float32: simd(0xb1), float64: simd(0xd1) };

/** The two lanes of a local, or its four in two pairs, as pairs of float64. */
export function pairs(local: number, precision: Precision): Code[] {
  if (precision === "float64") return [getLocal(local)];
  const promote = simd(0x5f);
  const upper = [...simd(0x0d), ...Array.from({ length: 16 }, (_, index) => 8 + (index % 8))];
  return [
    [...getLocal(local), ...promote],
    [...getLocal(local), ...getLocal(local), ...upper, ...promote],
  ];
}

/** `do body while (the second local, then raised by 16, is below the parameter)`. */
export const loop = (body: Code): Code => [
  ...[0x03, 0x40, ...body],
  ...[...getLocal(1), ...int32(16), 0x6a, 0x22, 1],
  ...[...getLocal(0), 0x48, 0x0d, 0, 0x0b],
];

/**
 * A module that exports the function `run` of an i32, and imports its memory as `m.m`.
 *
 * @param lanes how many locals there are after the parameter and another i32
 */
export function moduleOf(lanes: number, code: Code): Uint8Array {
  const [i32, v128] = [0x7f, 0x7b];
  const body = [2, 1, i32, ...unsigned(lanes), v128, ...code, 0x0b];
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, [1, 0x60, 1, i32, 0]),
    ...section(2, [1, ...name("m"), ...name("m"), 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, ...name("run"), 0, 0]),
    ...section(10, [1, ...unsigned(body.length), ...body]),
  ]);
}

const section = (id: number, content: Code): Code => [id, ...unsigned(content.length), ...content];
const name = (text: string): Code => [text.length, ...Buffer.from(text)];

/** LEB128. */
function unsigned(value: number): Code {
  return value < 0x80 ? [value] : [(value % 0x80) + 0x80, ...unsigned(Math.floor(value / 0x80))];
}
function signed(value: number): Code {
  return value >= -0x40 && value < 0x40 ? [value & 0x7f] : [(value & 0x7f) | 0x80, ...signed(value >> 7)];
}
