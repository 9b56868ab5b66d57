/** Tinker's tensors: little-endian bytes with a type and a shape, dense or sparse, and plain arrays of numbers. */
import { UserError } from "../../base/errors.ts";

/** A tensor as the wire has it, after protobuf. */
export interface TensorMessage {
  dense?: Uint8Array;
  sparse_csr?: { values?: Uint8Array; crow_indices?: Uint8Array; col_indices?: Uint8Array };
  dtype?: number;
  shape?: number[];
}

export interface Tensor {
  dtype: "float32" | "int64";
  /** Row-major; int64 values are exact up to 2^53. */
  values: Float32Array | Float64Array;
  shape: number[];
}

export const dtypes = { float32: 1, int64: 2, int32: 3, bfloat16: 4 } as const;

const numbersOf = (bytes: Uint8Array, size: number, read: (view: DataView, at: number) => number) => {
  if (bytes.byteLength % size !== 0)
    throw new UserError(`a tensor has ${bytes.byteLength} bytes, which is not a multiple of ${size}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float64Array.from({ length: bytes.byteLength / size }, (_, index) => read(view, index * size));
};

/** A copy: the bytes of a message may lie at any address. */
function copyOf32(bytes: Uint8Array, what = "numbers"): ArrayBuffer {
  if (bytes.byteLength % 4 === 0) return Uint8Array.from(bytes).buffer;
  throw new UserError(`${bytes.byteLength} bytes are not 32-bit ${what}: the length is not a multiple of 4`);
}

const none: Uint8Array = new Uint8Array(0);
export const int32sOf = (bytes = none): Int32Array => new Int32Array(copyOf32(bytes, "tokens"));
export const float32sOf = (bytes = none): Float32Array => new Float32Array(copyOf32(bytes));

export const int64sOf = (bytes = none): Float64Array =>
  numbersOf(bytes, 8, (view, at) => Number(view.getBigInt64(at, true)));

export const bytesOf = (array: Int32Array | Float32Array | BigInt64Array): Uint8Array =>
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

export const int64Bytes = (values: ArrayLike<number>): Uint8Array =>
  bytesOf(BigInt64Array.from(Array.from(values), BigInt));

function decodeValues(bytes: Uint8Array, dtype: number | undefined): Pick<Tensor, "dtype" | "values"> {
  switch (dtype) {
    case dtypes.float32:
      return { dtype: "float32", values: float32sOf(bytes) };
    case dtypes.bfloat16: {
      const wide = numbersOf(bytes, 2, (view, at) => view.getUint16(at, true));
      return { dtype: "float32", values: new Float32Array(Uint32Array.from(wide, (half) => half << 16).buffer) };
    }
    case dtypes.int64:
      return { dtype: "int64", values: int64sOf(bytes) };
    case dtypes.int32:
      return { dtype: "int64", values: Float64Array.from(int32sOf(bytes)) };
    default:
      throw new UserError(`the tensor type ${dtype} is unknown`);
  }
}

/** @throws UserError when bytes, type and shape do not fit together */
export function decodeTensor({ dense, sparse_csr, dtype, shape = [] }: TensorMessage): Tensor {
  if (sparse_csr) {
    const { dtype: type, values } = decodeValues(sparse_csr.values ?? new Uint8Array(0), dtype);
    const rows = int64sOf(sparse_csr.crow_indices);
    const columns = int64sOf(sparse_csr.col_indices);
    return { dtype: type, values: denseOf(values, rows, columns, shape), shape };
  }
  const decoded = decodeValues(dense ?? new Uint8Array(0), dtype);
  const whole = shape.length > 0 ? shape : [decoded.values.length];
  const count = whole.reduce((product, size) => product * size, 1);
  if (count !== decoded.values.length) {
    throw new UserError(`a tensor of ${decoded.values.length} elements cannot have the shape [${whole.join(", ")}]`);
  }
  return { ...decoded, shape: whole };
}

/**
 * A matrix from compressed rows; cells that are not listed are 0.
 * @throws UserError when the indices do not fit the shape
 */
function denseOf<T extends Float32Array | Float64Array>(
  values: T,
  rowStarts: ArrayLike<number>,
  columns: ArrayLike<number>,
  shape: readonly number[],
): T {
  const [rows = -1, width = -1] = shape;
  const starts = Array.from(rowStarts);
  const ascending = starts.every((start, index) => start >= (starts[index - 1] ?? 0));
  const fits = shape.length === 2 && starts.length === rows + 1 && starts[0] === 0 && starts.at(-1) === values.length;
  if (!fits || !ascending || columns.length !== values.length || rows * width > 2 ** 28) {
    throw new UserError(`the sparse indices do not fit ${values.length} values and the shape [${shape.join(", ")}]`);
  }
  const dense = new (values.constructor as new (length: number) => T)(rows * width);
  for (let row = 0; row < rows; row++) {
    for (let at = starts[row] ?? 0; at < (starts[row + 1] ?? 0); at++) {
      const column = columns[at] ?? -1;
      if (!(column >= 0 && column < width))
        throw new UserError(`the sparse column ${column} is outside of the width ${width}`);
      dense[row * width + column] = values[at] ?? 0;
    }
  }
  return dense;
}

export function encodeTensor({ dtype, values, shape }: Tensor): TensorMessage {
  const dense = dtype === "float32" ? bytesOf(Float32Array.from(values)) : int64Bytes(values);
  return { dense, dtype: dtypes[dtype], shape };
}

/** A matrix that lists only some of its cells. */
export function encodeSparse(
  values: Float32Array,
  rowStarts: readonly number[],
  columns: readonly number[],
  shape: number[],
): TensorMessage {
  const indices = { crow_indices: int64Bytes(rowStarts), col_indices: int64Bytes(columns) };
  return { sparse_csr: { values: bytesOf(values), ...indices }, dtype: dtypes.float32, shape };
}
