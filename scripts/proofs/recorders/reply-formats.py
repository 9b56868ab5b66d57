"""Replies in the formats of many models, as their own templates write them and as vLLM's parsers read them, for
src/chat/reply-formats.test.ts.

Needs Python with transformers, an unpacked or installed vLLM 0.32 (its parsers run without a device) and a folder with
templates: those of TRL 1.16.0's sdist (trl/chat_templates, as trl-NAME.jinja) and of llama-cpp-python 0.3.36's sdist
(vendor/llama.cpp/models/templates).

    python scripts/proofs/recorders/reply-formats.py models TEMPLATES FOLDER
    npx tsx scripts/proofs/recorders/reply-formats.ts FOLDER
    python scripts/proofs/recorders/reply-formats.py record FOLDER | gzip -9n > src/chat/reply-formats.fixture.json.gz

The first command writes a model folder for each template: a vocabulary of 400 tokens with the marks of the model. The second
one plays a conversation with each and lists the renderings that it needs. The third one records these renderings as token
ids of transformers, and what vLLM reads. No text of a template is recorded.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

BASE = Path(__file__).parents[3] / "src/chat/fixtures/chatml/tokenizer.json"

IM = ["<|im_start|>", "<|im_end|>"]
CALL = ["<tool_call>", "</tool_call>"]
THINK = ["<think>", "</think>"]
DEEPSEEK = [f"<｜{name}｜>" for name in (
    "User", "Assistant", "begin▁of▁sentence", "end▁of▁sentence", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end",
    "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end")]
GLM = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"]
MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]",
           "[CALL_ID]", "[ARGS]", "[TOOL_CONTENT]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]"]
KIMI = ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "[BOS]", "[EOS]"]
KIMI_CALL = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
GLM_CALL = [*CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"]


def model(name, template, parsers, eos, special=(), plain=(), bos=None):
    """`parsers`: vLLM's names of its tool and reasoning parsers."""
    tool, reasoning = parsers
    return {"name": name, "template": template, "tool": tool, "reasoning": reasoning, "eos": eos, "bos": bos,
            "special": list(special), "plain": list(plain), "arguments_as_text": template in ("trl-deepseekv3", "trl-deepseek_r1_distill")}


MODELS = [
    model("Qwen2.5", "trl-qwen2_5", ("hermes", None), "<|im_end|>", IM, CALL),
    model("Qwen3", "trl-qwen3", ("hermes", "qwen3"), "<|im_end|>", IM, CALL + THINK),
    model("Qwen3-Instruct-2507", "trl-qwen3_instruct_2507", ("hermes", None), "<|im_end|>", IM, CALL + THINK),
    model("Qwen3-Coder", "Qwen3-Coder", ("qwen3_coder", None), "<|im_end|>", IM, CALL + THINK),
    model("Qwen3.5", "trl-qwen3_5_think", ("qwen3_coder", "qwen3"), "<|im_end|>", IM, CALL + THINK),
    model("Qwen3.6", "trl-qwen3_6", ("qwen3_coder", "qwen3"), "<|im_end|>", IM, CALL + THINK),
    model("Qwen3.8", "trl-qwen3_8", ("qwen3_coder", "qwen3"), "<|im_end|>", IM, CALL + THINK),
    model("Hermes 3", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ("hermes", None), "<|im_end|>", [*IM, "<|begin_of_text|>"], CALL, "<|begin_of_text|>"),
    model("SmolLM3", "HuggingFaceTB-SmolLM3-3B", ("hermes", None), "<|im_end|>", IM, CALL + THINK),
    model("Granite 4.0", "ibm-granite-granite-4.0", ("hermes", None), "<|end_of_text|>", ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], CALL),
    model("Granite 3.3", "ibm-granite-granite-3.3-2B-Instruct", ("granite", None), "<|end_of_text|>",
          ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"]),
    model("gpt-oss", "trl-gptoss", ("harmony", "harmony"), "<|return|>",
          ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]),
    model("DeepSeek V3", "trl-deepseekv3", ("deepseek_v3", None), "<｜end▁of▁sentence｜>", DEEPSEEK, THINK, "<｜begin▁of▁sentence｜>"),
    model("DeepSeek R1", "trl-deepseek_r1_distill", ("deepseek_v3", "deepseek_r1"), "<｜end▁of▁sentence｜>", DEEPSEEK, THINK, "<｜begin▁of▁sentence｜>"),
    model("DeepSeek V3.1", "deepseek-ai-DeepSeek-V3.1", ("deepseek_v31", "deepseek_v3"), "<｜end▁of▁sentence｜>", DEEPSEEK, THINK, "<｜begin▁of▁sentence｜>"),
    model("DeepSeek V3.2", "deepseek-ai-DeepSeek-V3.2", ("deepseek_v32", "deepseek_v3"), "<｜end▁of▁sentence｜>", DEEPSEEK, [*THINK, "｜DSML｜"], "<｜begin▁of▁sentence｜>"),
    model("GLM-4.5", "trl-glm4moe", ("glm45", "glm45"), "<|endoftext|>", GLM, GLM_CALL + THINK),
    model("GLM-4.6", "GLM-4.6", ("glm45", "glm45"), "<|endoftext|>", GLM, GLM_CALL + THINK),
    model("GLM-4.7", "GLM-4.7-Flash", ("glm47", "glm45"), "<|endoftext|>", GLM, GLM_CALL + THINK),
    model("Kimi K2", "moonshotai-Kimi-K2", ("kimi_k2", None), "<|im_end|>", KIMI, KIMI_CALL),
    model("Llama 3.1", "meta-llama-Llama-3.1-8B-Instruct", ("llama3_json", None), "<|eot_id|>", LLAMA, (), "<|begin_of_text|>"),
    model("Llama 3.2", "trl-llama3_2", ("llama3_json", None), "<|eot_id|>", LLAMA, (), "<|begin_of_text|>"),
    model("Llama 4", None, ("llama4_pythonic", None), "<|eot|>", ["<|header_start|>", "<|header_end|>", "<|eot|>", "<|python_start|>", "<|python_end|>"]),
    model("Mistral Nemo", "mistralai-Mistral-Nemo-Instruct-2407", ("mistral", None), "</s>", MISTRAL, (), "<s>"),
    model("Mistral Small 3.2", "Mistral-Small-3.2-24B-Instruct-2506", ("mistral", None), "</s>", MISTRAL, (), "<s>"),
    model("Ministral 3 Reasoning", "mistralai-Ministral-3-14B-Reasoning-2512", ("mistral", None), "</s>", MISTRAL, (), "<s>"),
    model("Gemma 3", "trl-gemma3", (None, None), "<end_of_turn>", ["<bos>", "<start_of_turn>", "<end_of_turn>"], (), "<bos>"),
    model("Gemma 4", "google-gemma-4-31B-it", ("gemma4", "gemma4"), "<turn|>",
          ["<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>'],
          (), "<bos>"),
    model("Phi-4-mini", None, (None, None), "<|end|>", ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool_call|>", "<|/tool_call|>"]),
    model("Nemotron Nano 2", "NVIDIA-Nemotron-Nano-v2", (None, "deepseek_r1"), "<SPECIAL_12>", ["<s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"], THINK, "<s>"),
    model("Nemotron 3 Nano", "trl-nemotron_3_nano", ("qwen3_coder", "nemotron_v3"), "<|im_end|>", IM, CALL + THINK),
    model("LFM2", "trl-lfm2_v2", ("lfm2", None), "<|im_end|>", [*IM, "<|startoftext|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"], (), "<|startoftext|>"),
    model("LFM2.5", "LFM2.5-8B-A1B", ("lfm2", "qwen3"), "<|im_end|>", [*IM, "<|startoftext|>", "<|tool_call_start|>", "<|tool_call_end|>"], THINK, "<|startoftext|>"),
    model("OLMo 3", None, ("olmo3", None), "<|im_end|>", IM),
    model("MiniMax M1", "MiniMax-M1", (None, None), "<end_of_sentence>", ["<beginning_of_sentence>", "<end_of_sentence>"]),
    model("MiniMax M2", "MiniMax-M2", ("minimax_m2", "minimax_m2"), "[e~[", ["]~!b[", "]~b]", "[e~["], [*THINK, "<minimax:tool_call>", "</minimax:tool_call>"]),
    model("Seed-OSS", "ByteDance-Seed-OSS", ("seed_oss", "seed_oss"), "<seed:eos>", ["<seed:bos>", "<seed:eos>"],
          ["<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"], "<seed:bos>"),
]

TOOLS = [
    {"name": "find", "description": "finds places", "parameters": {"type": "object", "properties": {
        "query": {"type": "string"}, "limit": {"type": "integer"}, "near": {"type": "object"}, "kinds": {"type": "array", "items": {"type": "string"}}, "open": {"type": "boolean"}}}},
    {"name": "now", "description": "the time"},
]
QUESTION = [{"role": "user", "content": "Where?"}]


def call(name, **given):
    return {"name": name, "arguments": given}


REPLIES = [
    {"content": "In Zürich."},
    {"content": "Two lines:\n\n- 東京\n- 🎉 \\n \"quoted\""},
    {"content": "In Bern.", "reasoning": "They ask for a place.\nBern is one."},
    {"content": "", "calls": [call("find", query="Bern")]},
    {"content": "Let me see.", "calls": [call("find", query="Bern", limit=3)]},
    {"content": "", "calls": [call("find", query="Bern"), call("find", query="Basel", open=True)]},
    {"content": "", "calls": [call("now")]},
    {"content": "", "calls": [call("find", query="東京 Zürich 🎉")]},
    {"content": "", "calls": [call("find", query="a", near={"at": [1, 2.5, {"deep": [True, False]}], "name": "x\"y"})]},
    {"content": "", "calls": [call("find", query="42", limit=-7)]},
    {"content": "", "calls": [call("find", query="first\nsecond \\ \"third\"")]},
    {"content": "", "calls": [call("find", query="<b>bold</b> & {braces} [1]", kinds=["bar", "café"])]},
    {"content": "", "reasoning": "I need the tool.", "calls": [call("find", query="Bern")]},
    {"content": "So:", "reasoning": "Both.\n\nFirst Bern.", "calls": [call("find", query="Bern"), call("now")]},
]


def write_models(templates: Path, folder: Path) -> None:
    for entry in MODELS:
        target = folder / entry["name"]
        target.mkdir(parents=True, exist_ok=True)
        content = json.loads(BASE.read_text())
        vocabulary = content["model"]["vocab"]
        known = {token["content"] for token in content["added_tokens"]}
        free = max(vocabulary.values(), default=0) + 1
        for text, special in [(t, True) for t in entry["special"]] + [(t, False) for t in entry["plain"]]:
            if text in known:
                continue
            content["added_tokens"].append({"id": free, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                            "normalized": False, "special": special})
            free += 1
        (target / "tokenizer.json").write_text(json.dumps(content))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": entry["eos"], "bos_token": entry["bos"]}
        (target / "tokenizer_config.json").write_text(json.dumps(settings))
        if entry["template"]:
            (target / "chat_template.jinja").write_text((templates / f"{entry['template']}.jinja").read_text())
    (folder / "replies.json").write_text(json.dumps({"tools": TOOLS, "replies": REPLIES, "models": [m["name"] for m in MODELS if m["template"]]}))


# What models write whose templates these packages do not have, or do not write calls.
def python_call(each):
    return f"{each['name']}({', '.join(f'{key}={value!r}' for key, value in each['arguments'].items())})"


def json_call(each):
    return json.dumps(each, ensure_ascii=False)


WRITTEN = {
    "Llama 4": lambda calls: "<|python_start|>[" + ", ".join(map(python_call, calls)) + "]<|python_end|>",
    "OLMo 3": lambda calls: "<function_calls>\n" + "\n".join(map(python_call, calls)) + "\n</function_calls>",
    "Phi-4-mini": lambda calls: "<|tool_call|>[" + ", ".join(map(json_call, calls)) + "]<|/tool_call|>",
    "Granite 3.3": lambda calls: "<|tool_call|>[" + ", ".join(map(json_call, calls)) + "]",
    "SmolLM3": lambda calls: "\n".join(f"<tool_call>\n{json_call(each)}\n</tool_call>" for each in calls),
    "Gemma 3": lambda calls: "\n".join(f"<tool_call>\n{json_call(each)}\n</tool_call>" for each in calls),
}


def for_template(message: dict) -> dict:
    given = {"role": message["role"], "content": message["content"]}
    for source, key in (("reasoning", "reasoning_content"), ("toolCallId", "tool_call_id"), ("name", "name")):
        if source in message:
            given[key] = message[source]
    if "toolCalls" in message:
        given["tool_calls"] = [
            {"id": each["id"], "type": "function", "function": {key: each[key] for key in ("name", "arguments")}} for each in message["toolCalls"]
        ]
    return given


def as_message(reply: dict) -> dict:
    found = {"role": "assistant", "content": reply["content"]}
    if "reasoning" in reply:
        found["reasoning"] = reply["reasoning"]
    if "calls" in reply:
        found["toolCalls"] = [{"id": f"call0000{at}", **each} for at, each in enumerate(reply["calls"])]
    return found


def variants(reply_text: str):
    """Replies that models write by mistake, made of a correct one with calls."""
    size = len(reply_text)
    yield "cut early", reply_text[: size * 6 // 10]
    yield "cut late", reply_text[: size * 9 // 10]
    yield "text before", f"One moment.\n{reply_text}"
    yield "text after", f"{reply_text}\nThat is all."
    if '"' in reply_text:
        at = reply_text.rindex('"')
        yield "a quotation mark is missing", reply_text[:at] + reply_text[at + 1:]
    yield "twice", reply_text + reply_text
    yield "another name", reply_text.replace("find", "nowhere")
    yield "spaces", f"\n  {reply_text}\n \n"


class Reader:
    """vLLM's parsers of a model."""

    def __init__(self, entry, tokenizer, tools):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        self.tokenizer, self.entry = tokenizer, entry
        self.request = ChatCompletionRequest(model="m", messages=QUESTION, tools=[{"type": "function", "function": tool} for tool in tools])

    def read(self, text: str, prompt: str):
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager
        if self.entry["tool"] == "harmony":
            return self.read_harmony(text)
        found = {"reasoning": None, "content": text, "calls": []}
        if self.entry["reasoning"]:
            parser = ReasoningParserManager.get_reasoning_parser(self.entry["reasoning"])(self.tokenizer)
            parser.adjust_initial_state_from_prompt(self.tokenizer.encode(prompt, add_special_tokens=False))
            found["reasoning"], found["content"] = parser.extract_reasoning(text, self.request)
        if self.entry["tool"] and found["content"]:
            parser = ToolParserManager.get_tool_parser(self.entry["tool"])(self.tokenizer, self.request.tools)
            read = parser.extract_tool_calls(found["content"], self.request)
            found["content"] = read.content
            found["calls"] = [{"name": each.function.name, "arguments": json.loads(each.function.arguments)} for each in read.tool_calls]
        return found

    def read_harmony(self, text):
        """vLLM's parser of harmony needs a vocabulary that it downloads, so that of the package renderers is used."""
        import types

        import pydantic
        # It imports a configuration library for other parts of it.
        sys.modules["pydantic_config"] = types.SimpleNamespace(BaseConfig=pydantic.BaseModel)
        from renderers.parsing import parse_gpt_oss
        names = {f"{name}_id": self.tokenizer.convert_tokens_to_ids(f"<|{name}|>")
                 for name in ("return", "call", "start", "end", "channel", "message", "constrain")}
        found = parse_gpt_oss(self.tokenizer, self.tokenizer.encode(text, add_special_tokens=False), **names)
        calls = [each for each in found.tool_calls if each.status.name == "OK"]
        return {"reasoning": found.reasoning_content, "content": found.content,
                "calls": [{"name": each.name.removeprefix("functions."), "arguments": each.arguments} for each in calls]}


def prefix(left, right):
    at = 0
    while at < min(len(left), len(right)) and left[at] == right[at]:
        at += 1
    return at


def ending(entry, text, has_calls):
    """The reply without the token that ends it, and this token."""
    body = text.rstrip("\n ")
    for end in (entry["eos"], "<|call|>", "<|tool_response>"):
        if end and body.endswith(end):
            return body[: -len(end)], end
    if "<|observation|>" in entry["special"]:
        return text, "<|observation|>" if has_calls else "<|user|>"
    return text, entry["eos"]


def writes_less(name, reply) -> bool:
    """gpt-oss's template writes one call, and makes text next to it thinking; Nemotron's writes two turns."""
    more = bool(reply["content"] and reply.get("calls"))
    return (name == "gpt-oss" and (more or len(reply.get("calls", [])) > 1)) or (name == "Nemotron Nano 2" and more)


def cases_of(entry, tokenizer) -> list[dict]:
    """What the model writes, cut out of renderings of its template."""
    has_template = entry["template"] is not None
    tools = [{"type": "function", "function": {"parameters": {"type": "object", "properties": {}}} | tool} for tool in TOOLS]

    def render(messages, add_generation_prompt):
        given = [for_template(message) for message in messages]
        # The key of the thinking differs; only one of them is read.
        for message in given:
            if "reasoning_content" in message:
                message["reasoning"] = message["thinking"] = message["reasoning_content"]
            for each in message.get("tool_calls", []) if entry["arguments_as_text"] else []:
                each["function"]["arguments"] = json.dumps(each["function"]["arguments"], ensure_ascii=False)
        return tokenizer.apply_chat_template(given, tokenize=False, tools=tools, add_generation_prompt=add_generation_prompt)

    cases = []
    for reply in REPLIES:
        message, text, kind = as_message(reply), None, "template"
        try:
            if has_template and not (entry["name"] in WRITTEN and "calls" in reply):
                whole, prompt = render(QUESTION + [message], False), render(QUESTION, True)
                # The header is the part of the generation prompt that is also in the history.
                ids = tokenizer.encode(whole, add_special_tokens=False)
                text = tokenizer.decode(ids[prefix(tokenizer.encode(prompt, add_special_tokens=False), ids):])
                said = [reply.get("reasoning", ""), reply["content"], *(each["name"] for each in reply.get("calls", []))]
                if any(part not in text for part in said) or writes_less(entry["name"], reply):
                    text = None
        except Exception as error:  # noqa: BLE001 - a template refuses some replies
            print(entry["name"], "refuses", reply, str(error).split("\n")[0], file=sys.stderr)
        if text is None and entry["name"] in WRITTEN and "reasoning" not in reply:
            kind = "written"
            text = reply["content"] + (WRITTEN[entry["name"]](reply["calls"]) if "calls" in reply else "")
        if text is not None:
            body, end = ending(entry, text, "calls" in reply)
            cases.append({"kind": kind, "text": body, "end": end, "message": reply})
    for case in [case for case in cases if "calls" in case["message"]][:3:2]:
        cases += [{"kind": kind, "text": text, "end": case["end"]} for kind, text in variants(case["text"])]
    return cases


def write_cases(folder: Path) -> None:
    for entry in MODELS:
        tokenizer = AutoTokenizer.from_pretrained(folder / entry["name"])
        (folder / entry["name"] / "cases.json").write_text(json.dumps(cases_of(entry, tokenizer)))


def record(folder: Path) -> None:
    out = {"vllm": "0.32.0", "renderers": "0.1.12", "tools": TOOLS, "models": []}
    for entry in MODELS:
        target = folder / entry["name"]
        tokenizer = AutoTokenizer.from_pretrained(target)
        reader = Reader(entry, tokenizer, TOOLS)
        prompt = (target / "prompt.txt").read_text() if (target / "prompt.txt").exists() else ""
        cases = json.loads((target / "cases.json").read_text())
        for case in cases:
            text = case.pop("text")
            case["tokens"] = tokenizer.encode(text, add_special_tokens=False)
            try:
                case["read"] = reader.read(f"<|start|>assistant{text}{case['end']}" if entry["tool"] == "harmony" else text, prompt)
            except Exception as error:  # noqa: BLE001 - what a parser raises is recorded
                case["read"] = {"error": f"{type(error).__name__}: {error}"[:80]}
        log, last, differing = [], [], 0
        for wanted in json.loads((target / "renderings.json").read_text()) if (target / "renderings.json").exists() else []:
            variables = wanted["variables"]
            try:
                text = tokenizer.apply_chat_template(variables.pop("messages"), tokenize=False, **variables)
            except Exception:  # noqa: BLE001
                text = None
            if text != wanted["text"]:
                differing += 1
                print(entry["name"], "differs:", wanted["key"][:300], repr(text)[-300:], repr(wanted["text"])[-300:], file=sys.stderr)
            ids = None if text is None else tokenizer.encode(text, add_special_tokens=False)
            same = 0 if ids is None else prefix(last, ids)
            log.append([wanted["key"], same, None if ids is None else ids[same:]])
            last = last if ids is None else ids
        facts = json.loads((target / "facts.json").read_text()) if (target / "facts.json").exists() else None
        print(f"{entry['name']}: {len(cases)} replies, {len(log)} renderings, {differing} differ", file=sys.stderr)
        out["models"].append({"name": entry["name"], "special": entry["special"], "plain": entry["plain"], "eos": entry["eos"], "bos": entry["bos"],
                              "parsers": [entry["tool"], entry["reasoning"]], "cases": cases, "facts": facts, "renderings": log})
    print(json.dumps(out, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    if command == "models":
        write_models(*map(Path, paths))
        write_cases(Path(paths[-1]))
    else:
        record(Path(paths[0]))
