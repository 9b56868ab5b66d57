/** Gives a Llama model a vision part with random weights, in SmolVLM's architecture. */
import { closeSync, copyFileSync, openSync, readFileSync, writeFileSync, writevSync } from "node:fs";
import { join } from "node:path";
import { modelFolder, uniforms } from "hone-rl";

/** 64 patches of 8 x 8 pixels become 4 tokens of the text model. */
const vision = { image_size: 64, patch_size: 8, hidden_size: 96, intermediate_size: 192, num_hidden_layers: 2 };
const scale = 4;
const imageTokens = ["<image>", "<fake_token_around_image>", "<global-img>"];

const processor = {
  image_processor_type: "SmolVLMImageProcessor",
  do_resize: false,
  do_image_splitting: false,
  size: { longest_edge: vision.image_size },
  max_image_size: { longest_edge: vision.image_size },
};

const template = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}\
{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}`;

/**
 * Writes the model to a folder. `base`: a model in one safetensors file, whose tokenizer fills its vocabulary. Only its first
 * `layers` are kept.
 */
export async function addVision(base: string, layers: number, folder: string): Promise<void> {
  const source = await modelFolder(base);
  const readJson = (name: string) => JSON.parse(readFileSync(join(source, name), "utf8"));
  const writeJson = (name: string, value: object) => writeFileSync(join(folder, name), JSON.stringify(value));

  const text = readJson("config.json");
  const first = text.vocab_size as number;
  writeJson("config.json", {
    model_type: "smolvlm",
    architectures: ["SmolVLMForConditionalGeneration"],
    text_config: { ...text, num_hidden_layers: layers, vocab_size: first + imageTokens.length },
    vision_config: { ...vision, num_attention_heads: 4 },
    scale_factor: scale,
    image_token_id: first,
    tie_word_embeddings: text.tie_word_embeddings,
  });
  writeJson("preprocessor_config.json", processor);
  const tokens = (vision.image_size / vision.patch_size / scale) ** 2;
  writeJson("processor_config.json", { processor_class: "SmolVLMProcessor", image_seq_len: tokens });

  const tokenizer = readJson("tokenizer.json");
  const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  const added = imageTokens.map((content, index) => ({ id: first + index, content, ...plain }));
  writeJson("tokenizer.json", { ...tokenizer, added_tokens: [...tokenizer.added_tokens, ...added] });
  const { chat_template: _, ...settings } = readJson("tokenizer_config.json");
  writeJson("tokenizer_config.json", settings);
  writeFileSync(join(folder, "chat_template.jinja"), template);
  copyFileSync(join(source, "generation_config.json"), join(folder, "generation_config.json"));
  writeTensors(join(folder, "model.safetensors"), [
    ...readTensors(join(source, "model.safetensors"))
      .filter(({ name }) => Number(/layers\.(\d+)/.exec(name)?.[1] ?? 0) < layers)
      .map(extended),
    ...visionPart(text.hidden_size),
  ]);
}

interface Tensor {
  name: string;
  dtype: string;
  shape: number[];
  bytes: Buffer;
}

/** Renames a tensor as in SmolVLM. Embeddings also get rows for the image tokens: copies of the rows of rare tokens. */
function extended({ name, dtype, shape, bytes }: Tensor): Tensor {
  const renamed = name.replace(/^model\./, "model.text_model.");
  if (!/embed_tokens|lm_head/.test(name)) return { name: renamed, dtype, shape, bytes };
  const row = bytes.length / shape[0]!;
  const rows = bytes.subarray(3 * row, (3 + imageTokens.length) * row);
  return {
    name: renamed,
    dtype,
    shape: [shape[0]! + imageTokens.length, shape[1]!],
    bytes: Buffer.concat([bytes, rows]),
  };
}

function visionPart(textSize: number): Tensor[] {
  const { image_size, patch_size, hidden_size: size, intermediate_size: inner, num_hidden_layers: layers } = vision;
  const norm = (name: string) => [tensor(`${name}.weight`, [size]), tensor(`${name}.bias`, [size])];
  const linear = (name: string, from: number, to: number) => [
    tensor(`${name}.weight`, [to, from]),
    tensor(`${name}.bias`, [to]),
  ];
  const layer = (name: string) => [
    ...["layer_norm1", "layer_norm2"].flatMap((part) => norm(`${name}.${part}`)),
    ...["q_proj", "k_proj", "v_proj", "out_proj"].flatMap((part) => linear(`${name}.self_attn.${part}`, size, size)),
    ...linear(`${name}.mlp.fc1`, size, inner),
    ...linear(`${name}.mlp.fc2`, inner, size),
  ];
  const tower = "model.vision_model";
  return [
    tensor(`${tower}.embeddings.patch_embedding.weight`, [size, 3, patch_size, patch_size]),
    tensor(`${tower}.embeddings.patch_embedding.bias`, [size]),
    tensor(`${tower}.embeddings.position_embedding.weight`, [(image_size / patch_size) ** 2, size]),
    ...Array.from({ length: layers }, (_, index) => layer(`${tower}.encoder.layers.${index}`)).flat(),
    ...norm(`${tower}.post_layernorm`),
    tensor("model.connector.modality_projection.proj.weight", [textSize, size * scale ** 2]),
  ];
}

const random = uniforms(0);

/** A new tensor: biases are 0, norms 1. Weights keep the scale of activations; the last one gives the scale of embeddings. */
function tensor(name: string, shape: number[]): Tensor {
  const count = shape.reduce((product, one) => product * one);
  const inputs = count / shape[0]!;
  const spread = name.includes("position") ? 0.3 : (name.includes("connector") ? 0.14 : 1) / Math.sqrt(inputs);
  const fixed = name.endsWith("bias") ? 0 : shape.length === 1 ? 1 : undefined;
  const values = Float32Array.from({ length: count }, () => fixed ?? (2 * random() - 1) * Math.sqrt(3) * spread);
  return { name, dtype: "F32", shape, bytes: Buffer.from(values.buffer) };
}

/** A safetensors file is the length of its header in 8 bytes, the header in JSON, and the tensors. */
function readTensors(file: string): Tensor[] {
  const content = readFileSync(file);
  const start = 8 + Number(content.readBigUInt64LE());
  const header: Record<string, Omit<Tensor, "name" | "bytes"> & { data_offsets: [number, number] }> = JSON.parse(
    content.toString("utf8", 8, start),
  );
  return Object.entries(header).flatMap(([name, { dtype, shape, data_offsets }]) => {
    if (name === "__metadata__") return [];
    const [begin, end] = data_offsets;
    return [{ name, dtype, shape, bytes: content.subarray(start + begin, start + end) }];
  });
}

function writeTensors(file: string, tensors: readonly Tensor[]): void {
  let end = 0;
  const entries = tensors.map(({ name, dtype, shape, bytes }) => {
    const begin = end;
    end += bytes.length;
    return [name, { dtype, shape, data_offsets: [begin, end] }];
  });
  const header = Buffer.from(JSON.stringify({ __metadata__: { format: "pt" }, ...Object.fromEntries(entries) }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const handle = openSync(file, "w");
  writevSync(handle, [length, header, ...tensors.map(({ bytes }) => bytes)]);
  closeSync(handle);
}
