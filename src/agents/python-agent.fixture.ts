/** For the end-to-end test: an agent written in Python, with nothing but its standard library, that records what it got. */
import { commandAgent, defineExperiment, generated } from "hone-rl";

const source = `
import json, os, sys, urllib.request

row = json.loads(sys.stdin.readline())
assert row == json.loads(os.environ["HONE_TASK"])
calls, messages = [], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say %d" % row["index"]}]
for turn in range(2):
    body = {"model": "policy", "messages": messages, "logprobs": True, "return_token_ids": True, "max_tokens": 6}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    choice = answer["choices"][0]
    calls.append({"roles": [message["role"] for message in messages], "prompt": answer["prompt_token_ids"],
        "tokens": choice["token_ids"], "logprobs": [token["logprob"] for token in choice["logprobs"]["content"]]})
    messages += [{"role": "assistant", "content": choice["message"]["content"]}, {"role": "user", "content": "again"}]
    if row["index"] % 4 == 3:
        print("about to look it up", file=sys.stderr)
        row["answer"]
reward = len(calls[-1]["tokens"]) / 6
with open(os.environ["HONE_RECORDS"], "a") as records:
    records.write(json.dumps({"base_url": os.environ["OPENAI_BASE_URL"], "calls": calls, "reward": reward}) + "\\n")
print("thinking aloud")
print(json.dumps({"reward": reward, "metrics": {"turns": len(calls)}}))
`;

export default defineExperiment<{ index: number }>({
  train: generated("toy", 8, (index) => ({ index })),
  workflow: commandAgent({
    command: [process.env.HONE_PYTHON ?? "python3", "-c", source],
    env: { HONE_RECORDS: process.env.HONE_RECORDS ?? "" },
  }),
  config: {
    rllm: { rollout: { n: 2 }, trainer: { total_batches: 2, save_freq: 0, test_freq: 0, val_before_train: false } },
    model: { lora_rank: 4 },
    data: { train_batch_size: 4, max_response_length: 8, shuffle: false },
    local: { dtype: "float32", device: "cpu", threads: 1 },
  },
});
