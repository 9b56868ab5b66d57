/** Images as users give them, and as Hone keeps them: once, by the hash of their bytes. */

/**
 * The bytes of a PNG or JPEG file, also in base64; a data URL, an http(s) URL or the path of such a file; an image of a data set;
 * or an image that is stored.
 */
export type ImageSource = Uint8Array | ArrayBuffer | Blob | URL | string | ParquetImage | StoredImage | ClientImage;

/** Hugging Face's datasets store images as bytes, or as a path if they are not embedded. */
export interface ParquetImage {
  /** Text is base64, as in a data set of JSON lines. */
  bytes?: Uint8Array | string | null;
  path?: string | null;
}

/** The data URL or http(s) URL that a client of a server sent. Never a file of this machine. */
export interface ClientImage {
  address: string;
}

export type ImageType = "image/png" | "image/jpeg";

/** An image in a `MediaStore`. */
export interface StoredImage {
  /** SHA-256 of the file's bytes, in lowercase hexadecimal. */
  hash: string;
  type: ImageType;
  /** In pixels, as in the file: before any rotation that its EXIF data asks for. */
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
