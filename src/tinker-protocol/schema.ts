/**
 * Tinker's binary messages, package `tinker_public`, as SDK 0.38.0 uses them. Only fields that Hone reads or writes are
 * listed; decoding skips others.
 */
import protobuf from "protobufjs";

const definitions = `
syntax = "proto3";
package tinker_public;

enum DType { DTYPE_UNSPECIFIED = 0; DTYPE_FLOAT32 = 1; DTYPE_INT64 = 2; DTYPE_INT32 = 3; DTYPE_BFLOAT16 = 4; }
enum StopReason { STOP_REASON_STOP = 0; STOP_REASON_LENGTH = 1; }

message SparseCsr { bytes values = 1; bytes crow_indices = 2; bytes col_indices = 3; }
message Tensor {
  oneof encoding { bytes dense = 1; SparseCsr sparse_csr = 2; }
  DType dtype = 3;
  repeated int64 shape = 4;
}

message EncodedTextChunk { bytes tokens = 1; }
message ImageDimensions {}
message ImageChunk {
  bytes data = 1;
  string format = 2;
  optional int32 expected_tokens = 3;
  optional ImageDimensions override_dimensions = 4;
}
message DmelChunk { bytes dmel = 1; }
message Chunk { oneof chunk { EncodedTextChunk encoded_text = 1; ImageChunk image = 2; DmelChunk dmel = 3; } }
message Datum { repeated Chunk model_input = 1; map<string, Tensor> loss_fn_inputs = 2; }
message LossConfigValue { oneof value { double number = 1; string text = 2; } }
message ForwardBackwardRequest {
  string model_id = 1;
  int32 seq_id = 2;
  repeated Datum data = 3;
  string loss_fn = 4;
  map<string, double> loss_fn_config = 5;
  bool forward_only = 6;
  map<string, LossConfigValue> loss_fn_config_v2 = 7;
}

message BatchedTensor { bytes data = 1; bytes offsets = 2; DType dtype = 3; repeated int64 trailing_shape = 4; }
message ArrayRecord { string type_tag = 1; map<string, BatchedTensor> fields = 2; int64 num_datums = 3; }
message ForwardBackwardOutput {
  string loss_fn_output_type = 1;
  repeated ArrayRecord loss_fn_outputs = 2;
  map<string, double> metrics = 3;
}

message TopkLogprobs { bytes token_ids = 1; bytes logprobs = 2; uint32 k = 3; uint32 length = 4; }
message SampledSequence {
  StopReason stop_reason = 1;
  bytes tokens = 2;
  optional bytes logprobs = 3;
  optional TopkLogprobs topk_sampled_logprobs = 4;
}
message PromptAltTokens { Tensor tokens = 1; Tensor logprobs = 2; }
message SampleResponse {
  repeated SampledSequence sequences = 1;
  optional bytes prompt_logprobs = 2;
  optional TopkLogprobs topk_prompt_logprobs = 3;
  int32 prompt_cache_hit_tokens = 4;
  optional Tensor target_prompt_logprobs = 5;
  optional PromptAltTokens prompt_alt_tokens = 6;
}`;

const { root } = protobuf.parse(definitions, { keepCase: true });

/** The version of the official client that has these messages. A service may choose its answers by this version. */
export const sdkVersion = "0.38.0";

/** A message by its name in the definitions above. */
export const message = (name: string): protobuf.Type => root.lookupType(`tinker_public.${name}`);

/** Decoding gives plain objects; 64-bit integers as numbers (shapes and counts are far below 2^53). */
export const toPlain: protobuf.IConversionOptions = { longs: Number, oneofs: true };
