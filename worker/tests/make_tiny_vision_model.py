"""Writes a tiny random model that reads images as a Hugging Face folder, with a chat template.

    python make_tiny_vision_model.py DIRECTORY [FAMILY] [HEAD_SIZE]

Inference servers require a head size of at least 32.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_vision_models import build

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ 'IMAGE' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    family = sys.argv[2] if len(sys.argv) > 2 else "smolvlm"
    folder = build(family, directory, int(sys.argv[3]) if len(sys.argv) > 3 else 8)
    image = "<|vision_start|><|image_pad|><|vision_end|>" if family.startswith("qwen") else "<image>"
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("IMAGE", image))
