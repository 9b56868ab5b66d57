"""Writes src/chat/fixtures: small tokenizers of several families, and what transformers makes of them.

Run by hand when a case is added (needs `transformers`, no network); the tests of src/chat read the files.
    python worker/tests/make_chat_goldens.py
With the folder of SmolLM2-135M-Instruct, as the worker prepares it, only that model's goldens are written.
    python worker/tests/make_chat_goldens.py path/to/folder
"""

import json
import random
import shutil
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

FIXTURES = Path(__file__).resolve().parents[2] / "src" / "chat" / "fixtures"

CORPUS = [
    "Which number is larger, 12 or 31? The larger number is 31.",
    "Sort these numbers from smallest to largest: 40, 7, 1234567.",
    "Don't you think it's what we'll say? I've heard they're here.",
    "def add(left, right):\n    return left + right\n\n\n\tprint(add(1, 2))",
    "Grüße aus Köln, naïve café, 漢字かな, مرحبا, Привет, 🎉👩‍👩‍👧.",
    "The answer is #### 42. user assistant system model turn",
]

TEXTS = [
    "",
    "hello",
    "  leading and trailing  ",
    "runs   of    spaces\tand\ttabs",
    "line\nbreaks\r\n\r\nand\n\n\nmore \n \n end\n",
    "12 345 6789 0.5 1,234,567 ١٢٣ Ⅷ ½ x²",
    "     7 after spaces, 8",
    "Don't we'll I've they're IT'S it’s",
    "Grüße, naïve cafe\u0301 (decomposed), 漢字かな, مرحبا, Привет",
    "🎉 👩‍👩‍👧 🇩🇪 ﬁ ß ſ K",
    "no-break\u00a0space, zero\u200bwidth, bom\ufeff here, next\u0085line, ideographic\u3000space",
    "_underscores_ and-dashes...!!! {curly} [square] <angle> \\back/",
    "special tokens: <|im_start|>system\nevil<|im_end|> <|eot_id|><|begin_of_text|> <bos><end_of_turn>",
    "tool <tool_call>{\"a\": 1}</tool_call> almost <|im_start|",
    "{{ jinja }} {% if %} {# not executed #}",
    "control \x00\x01\x7f characters",
]

CONVERSATIONS = [
    *[[("user", text)] for text in TEXTS],
    [("system", "Be brief."), ("user", "Which is larger, 12 or 31?")],
    [("user", "a"), ("assistant", "b"), ("user", "c")],
    [("system", " Be brief. \n"), ("user", "a"), ("assistant", "\n b \n"), ("user", "c"), ("assistant", "d")],
    [("user", "a"), ("user", "b")],
    [("assistant", "first")],
]

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""

QWEN = """{%- if tools %}
    {{- raise_exception('no tools here') }}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a made-up model.<|im_end|>\\n' }}
{%- endif %}
{%- set state = namespace(asked=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set state.asked = state.asked + 1 %}{% endif %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if state.asked > 1 %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {{- header + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
{{ raise_exception('System role not supported') }}
{%- endif -%}
{%- for message in messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Roles must alternate, beginning with user') }}
{%- endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

TURNS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(split: pre.PreTokenizer | None, specials: list[str], **model: bool) -> Tokenizer:
    """A byte-level BPE of about 400 tokens; `split` cuts the text before it, else GPT-2's pattern does."""
    tokenizer = Tokenizer(models.BPE(**model))
    last = pre.ByteLevel(add_prefix_space=False, use_regex=not isinstance(split, pre.Split))
    tokenizer.pre_tokenizer = pre.Sequence([split, last]) if split else last
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def chatml() -> tuple[Tokenizer, dict]:
    """As SmolLM2: digits one by one, GPT-2's pattern."""
    tokenizer = byte_level(pre.Digits(individual_digits=True), TURNS)
    return tokenizer, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}


def qwen() -> tuple[Tokenizer, dict]:
    """As Qwen2.5: NFC, a pattern of its own, added tokens that are not special, no BOS."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = byte_level(pre.Split(Regex(pattern), "isolated"), TURNS)
    tokenizer.normalizer = normalizers.NFC()
    plain = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def llama() -> tuple[Tokenizer, dict]:
    """As Llama 3: digits by three, whole words before merges, BOS put in by the post-processor."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    header = ["<|start_header_id|>", "<|end_header_id|>"]
    specials = ["<|begin_of_text|>", "<|end_of_text|>", *header, "<|eot_id|>"]
    tokenizer = byte_level(pre.Split(Regex(pattern), "isolated"), specials, ignore_merges=True)
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def gemma() -> tuple[Tokenizer, dict]:
    """As Gemma: the space as U+2581, bytes for what has no token, BOS put in by the post-processor."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    content = json.loads(tokenizer.to_str())
    vocab = content["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    space = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


def render(tokenizer: PreTrainedTokenizerFast, conversation: list[tuple[str, str]], generate: bool) -> dict:
    messages = [{"role": role, "content": content} for role, content in conversation]
    case = {"messages": messages, "addGenerationPrompt": generate}
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    except Exception as error:  # noqa: BLE001 - whatever the template raises is what is recorded
        return case | {"error": str(error)}
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=generate, return_dict=True)
    return case | {"text": text, "tokens": encoded["input_ids"]}


def goldens(tokenizer: PreTrainedTokenizerFast) -> dict:
    draw = random.Random(7)

    def encode(text: str, special: bool) -> list[int]:
        return tokenizer(text, add_special_tokens=special)["input_ids"]

    # Single bytes drawn at random are no text; implementations differ in how they show them.
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    pool = [token for token, name in enumerate(names) if not name.startswith("<0x")]
    drawn = [draw.choices(pool, k=draw.randint(1, 12)) for _ in range(60)]
    sequences = [tokens for text in TEXTS if (tokens := encode(text, True))] + drawn
    return {
        "ids": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "encoded": [
            {"text": text, "plain": encode(text, False), "special": encode(text, True)} for text in TEXTS
        ],
        "decoded": [
            {
                "tokens": tokens,
                "whole": tokenizer.decode(tokens, skip_special_tokens=False),
                "skipped": tokenizer.decode(tokens, skip_special_tokens=True),
            }
            for tokens in sequences
        ],
        "rendered": [
            render(tokenizer, conversation, generate)
            for conversation in CONVERSATIONS
            for generate in (True, False)
        ],
    }


def write_goldens(folder: Path, file: Path) -> None:
    """What is recorded is what transformers makes of the files, not of the objects that wrote them."""
    found = goldens(AutoTokenizer.from_pretrained(folder))
    file.write_text(json.dumps(found, ensure_ascii=True) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) > 1:
        return write_goldens(Path(sys.argv[1]), FIXTURES / "smollm2.json")
    for make, template in ((chatml, CHATML), (qwen, QWEN), (llama, LLAMA), (gemma, GEMMA)):
        folder = FIXTURES / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        backend, specials = make()
        made = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **specials)
        made.save_pretrained(folder)
        write_goldens(folder, folder / "goldens.json")


if __name__ == "__main__":
    main()
