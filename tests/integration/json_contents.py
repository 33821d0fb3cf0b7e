"""Valid contents of the JSON files that tests/integration/json_files.py lists."""

from __future__ import annotations

import hashlib
import json

from albert.tokenization.byte_bpe import BYTE_CHARACTERS

# The config.json of a run.
RUN_CONFIG = {
  "task": "race",
  "recipe": "race",
  "init_checkpoint": "",
  "model": {"hidden_size": 8, "num_attention_heads": 2},
  "optimizer": {"learning_rate": 0.1},
  "train": {"num_train_steps": 7, "seed": 3},
  "data": {"max_seq_length": 64, "vocab_sha256": "ab"},
  "training_data": {"num_files": 1, "num_examples": 2, "sha256": "ab"},
}

SQUAD_FILE = {
  "version": "1.1",
  "data": [
    {
      "title": "t",
      "paragraphs": [
        {
          "context": "one two",
          "qas": [{"id": "q", "question": "w?", "answers": [{"text": "two", "answer_start": 4}]}],
        }
      ],
    }
  ],
}

# A passage of RACE.
RACE_PASSAGE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["A"], "id": "high1.txt"}

# A line of a file of multiple-choice questions.
MULTIPLE_CHOICE_QUESTION = {"id": "1", "article": "a", "question": "q", "options": ["x", "y"], "answer": 1}

# The manifest.json of shards.
SHARDS_MANIFEST = {
  "kind": "pretraining",
  "settings": {"sentence_prediction": "sop", "masking": "static", "ngram": 3, "input_files": [{"file": "a.txt"}]},
  "vocab_sha256": "ab",
  "vocab_size": 30,
  "num_documents": 1,
  "num_tokens": 9,
  "label_counts": {"0": 1},
  "num_examples": 2,
  "shards": [{"file": "x", "examples": 2, "bytes": 3, "sha256": "ab"}],
}

# Of an empty file.
EMPTY_SHA256 = hashlib.sha256().hexdigest()

CHECKPOINT_FILES = ("weights.index", "weights.data-00000-of-00001", "albert_config.json")

# The entry of a file in the manifest.json of a checkpoint.
CHECKPOINT_FILE_ENTRY = {"bytes": 5, "sha256": "ab"}

# A byte-level BPE vocabulary: its special pieces, and the beginning of its JSON with the pieces of the 256 bytes.
BPE_SPECIAL_IDS = {piece: i for i, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))}
BPE_BYTE_IDS = b"".join(b"%s: %d, " % (json.dumps(c).encode(), 5 + i) for i, c in enumerate(BYTE_CHARACTERS))
