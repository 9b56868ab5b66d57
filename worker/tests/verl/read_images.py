"""Reads images with the models in folders, in the environment of the Python that runs it.

    python read_images.py TARGET IMAGE FOLDER...
"""

import sys
from pathlib import Path

import torch
from hone_worker.images.vision import vision_of
from transformers import AutoModelForImageTextToText

target, image, *folders = sys.argv[1:]
found = {}
for folder in folders:
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).base_model
    vision = vision_of(base, Path(folder))
    read = vision.read("image", Path(image).read_bytes())
    found[folder] = (read.tokens, vision.features([read]))
torch.save(found, target)
