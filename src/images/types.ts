/** Images as users give them, and as Hone keeps them: once, by the hash of their bytes. */

/**
 * The bytes of a PNG or JPEG file; a data URL, an http(s) URL or the path of such a file; an image of a Parquet file; or an
 * image that is stored.
 */
export type ImageSource = Uint8Array | URL | string | ParquetImage | StoredImage;

/** Hugging Face's datasets store images as bytes, or as a path if they are not embedded. */
export interface ParquetImage {
  bytes: Uint8Array | null;
  path: string | null;
}

export type ImageType = "image/png" | "image/jpeg";

/** An image in a `MediaStore`. */
export interface StoredImage {
  /** SHA-256 of the file's bytes, in lowercase hexadecimal. */
  hash: string;
  type: ImageType;
  /** Of the file, in pixels, before any rotation that its EXIF data asks for. */
  width: number;
  height: number;
  /** Size of the file. */
  bytes: number;
}

/** An image within a token sequence: `tokens[at .. at + length)` stand for it. */
export interface Media {
  at: number;
  length: number;
  hash: string;
}
