"""Renders each chat template of a folder with transformers: python record.py folder conversations.json out.json"""

import datetime
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as templates

NOW = datetime.datetime(2026, 3, 7, 16, 5, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class FrozenTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


templates.datetime = FrozenTime


def render(source, conversation):
    variables = {key: value for key, value in conversation.items() if key != "name"}
    try:
        template = templates._compile_jinja_template(source)
        values = {"tools": None, "documents": None, **TOKENS, **variables}
        return {"text": template.render(**values)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(folder, conversations_file, out):
    conversations = json.loads(pathlib.Path(conversations_file).read_text("utf-8"))
    results = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        source = path.read_bytes().decode("utf-8", "replace")
        results[path.name] = [render(source, conversation) for conversation in conversations]
    pathlib.Path(out).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
