#!/usr/bin/env bash
# The whole pipeline at a size for a laptop: raw text -> vocabulary -> TFRecord shards -> pretrained ALBERT -> predictions of
# masked words. If it was stopped, run the same command again: training resumes from its last checkpoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-output/demo}
mkdir -p "$OUT"

echo "== 1/5 raw text: the docstrings of the installed Python packages"
if [ ! -f "$OUT/corpus/heldout.txt" ]; then
  "$PYTHON" -m data_prep.sample_corpus --output_dir="$OUT/corpus"
fi

echo "== 2/5 vocabulary"
if [ ! -f "$OUT/vocab/spiece.model" ]; then
  "$PYTHON" -m data_prep.train_vocab --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/vocab" --vocab_size=8000
fi

echo "== 3/5 TFRecord shards: masks and sentence pairs"
prepare() {
  "$PYTHON" -m data_prep.create_pretraining_data --spm_model_file="$OUT/vocab/spiece.model" --max_seq_length=64 "$@"
}
prepare --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/train" --dupe_factor=3 --num_shards=8
prepare --input_file="$OUT/corpus/heldout.txt" --output_dir="$OUT/heldout" --dupe_factor=1 --num_shards=1 --random_seed=1

echo "== 4/5 pretraining, then evaluation on held-out documents"
"$PYTHON" run_pretraining.py --recipe=configs/pretraining_demo.json --output_dir="$OUT/run" \
  --spm_model_file="$OUT/vocab/spiece.model" \
  --input_file="$OUT/train/*.tfrecord" --eval_input_file="$OUT/heldout/*.tfrecord" --do_train --do_eval

echo "== 5/5 filling the mask"
printf '%s\n' 'Returns a [MASK] of the same shape as the input.' 'The name of the [MASK] to use.' > "$OUT/sentences.txt"
"$PYTHON" run_pretraining.py --output_dir="$OUT/run" --do_predict \
  --spm_model_file="$OUT/vocab/spiece.model" --predict_file="$OUT/sentences.txt"

echo "Curves: $OUT/run/curves.png   metrics: $OUT/run/metrics.jsonl   results: $OUT/run/eval_results.json"
