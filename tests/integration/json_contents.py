"""A valid content of each JSON file with many fields that the code reads."""

from __future__ import annotations

import hashlib

RUN = {
  "task": "race",
  "recipe": "race",
  "init_checkpoint": "",
  "model": {"hidden_size": 8, "num_attention_heads": 2},
  "optimizer": {"learning_rate": 0.1},
  "train": {"num_train_steps": 7, "seed": 3},
  "data": {"max_seq_length": 64, "vocab_sha256": "ab"},
  "training_data": {"num_files": 1, "num_examples": 2, "sha256": "ab"},
}


RUNS = {"seeds": [1, 2], "best_seed": 1, "best_run": "run-1", "metrics": {"accuracy": {"median": 1.0}}}


SQUAD = {
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


PASSAGE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["A"], "id": "high1.txt"}


CHOICE = {"id": "1", "article": "a", "question": "q", "options": ["x", "y"], "answer": 1}


MANIFEST = {
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


EXPERIMENT = {
  "title": "t",
  "source": "s",
  "model": "albert_base",
  "steps": 2,
  "reduced": {"steps": 1},
  "variants": [{"name": "n", "fields": {"num_hidden_layers": 3}, "data": {"masking": "none"}, "paper": {"mlm": 1.0}}],
}


DESCRIPTION = {
  "task": "classifier",
  "fields": [{"name": "text", "meaning": "m", "is_list": False}],
  "answers": {"label": "l"},
  "labels": ["a", "b"],
  "counted_by": "",
  "checkpoint": {"path": "p", "step": 3},
}


ROW = {"variant": "v", "seed": 1, "digest": "d", "parameters": 3, "examples_per_second": 1.5, "scores": {"mlm": 2.0}}


NBEST = {"q": [{"text": "x", "probability": 1.0}]}


EMPTY_SHA256 = hashlib.sha256().hexdigest()


CHECKPOINT_FILES = ("weights.index", "weights.data-00000-of-00001", "albert_config.json")


FILE_ENTRY = {"bytes": 5, "sha256": "ab"}
