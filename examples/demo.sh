#!/usr/bin/env bash
# The whole pipeline at a size for a laptop: raw text -> vocabulary -> TFRecord shards -> pretrained ALBERT -> the hidden
# words of ten sentences. If it was stopped, run the same command again: training resumes from its last checkpoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-output/demo}
mkdir -p "$OUT"

echo "== 1/6 raw text: the docstrings of the installed Python packages"
if [ ! -f "$OUT/corpus/heldout.txt" ]; then
  "$PYTHON" -m data_prep.sample_corpus --output_dir="$OUT/corpus"
fi

echo "== 2/6 vocabulary"
if [ ! -f "$OUT/vocab/spiece.model" ]; then
  "$PYTHON" -m data_prep.train_vocab --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/vocab" --vocab_size=8000
fi

echo "== 3/6 TFRecord shards: masks and sentence pairs"
"$PYTHON" -m data_prep.create_pretraining_data --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/shards" \
  --spm_model_file="$OUT/vocab/spiece.model" --max_seq_length=64 --dupe_factor=4 --eval_share=0.02

echo "== 4/6 pretraining; evaluation on held-out documents"
"$PYTHON" run_pretraining.py --recipe=pretraining_small --input_file="$OUT/shards/*.tfrecord" \
  --spm_model_file="$OUT/vocab/spiece.model" --output_dir="$OUT/run" --do_train --do_eval --train_batch_size=16

echo "== 5/6 the hidden words of ten sentences that are not in the text"
"$PYTHON" examples/hidden_words.py "$OUT/run" "$OUT/corpus/train.txt"

echo "== 6/6 a page about the run"
"$PYTHON" -m albert.report "$OUT/run"

cat <<END

Open $OUT/run/report.html in a browser, or look at $OUT/run/curves.png: training and evaluation, and guessing as a dashed line.

What to try next:
  export the model, to fill in masks without the run:
    $PYTHON -m albert.export --checkpoint=$OUT/run --output_dir=$OUT/models --task=fill_mask
  ask the exported model:
    echo 'The name of the [MASK].' | $PYTHON -m albert.predict --model=$OUT/models/fill_mask
  write an embedding of each line of a text:
    $PYTHON -m albert.embed --checkpoint=$OUT/run --input_file=$OUT/corpus/heldout.txt --output_file=$OUT/vectors.npy
END
