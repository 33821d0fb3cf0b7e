"""The console commands of data_prep that setup.py installs, such as albert-train-vocab.

albert-train-vocab is python -m data_prep.train_vocab, and so on. The module imports no large libraries.
"""

from __future__ import annotations

from functools import partial

from albert.startup import run_command_of

create_pretraining_data = partial(run_command_of, "data_prep.create_pretraining_data")
question_texts = partial(run_command_of, "data_prep.question_texts")
sample_corpus = partial(run_command_of, "data_prep.sample_corpus")
split_text = partial(run_command_of, "data_prep.split_text")
train_vocab = partial(run_command_of, "data_prep.train_vocab")
