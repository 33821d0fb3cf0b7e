#!/usr/bin/env bash
# The benchmarks that `make bench` runs: data preparation on the docstrings of the installed packages, the costs of the
# training loop besides its steps, and a step of pretraining (compared with other libraries, profiled, and for growing
# length, batch and depth).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
PEERS_PYTHON=${PEERS_PYTHON:-.venv-parity/bin/python}
OUT=${OUT:-output/bench}
mkdir -p "$OUT"

if [ ! -f "$OUT/corpus/train.txt" ]; then
  "$PYTHON" -m data_prep.sample_corpus --output_dir="$OUT/corpus"
fi
if [ ! -f "$OUT/vocab/spiece.model" ]; then
  "$PYTHON" -m data_prep.train_vocab --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/vocab" --vocab_size=16000
fi
measure() {
  "$PYTHON" benchmarks/bench_data_prep.py --input_file="$OUT/corpus/*.txt" --spm_model_file="$OUT/vocab/spiece.model" "$@"
}
measure
measure --statistics
measure --profile
if [ ! -f "$OUT/shards/manifest.json" ]; then
  "$PYTHON" -m data_prep.create_pretraining_data --input_file="$OUT/corpus/train.txt" --output_dir="$OUT/shards" \
    --spm_model_file="$OUT/vocab/spiece.model" --max_seq_length=128
fi
"$PYTHON" benchmarks/bench_loop.py --input_file="$OUT/shards/*.tfrecord" --vocab_size=16000 --batch_size=4
"$PYTHON" benchmarks/bench_step.py --peers_python="$PEERS_PYTHON" --output="$OUT/step.md"
"$PYTHON" benchmarks/profile_step.py
"$PYTHON" benchmarks/bench_scaling.py --output_dir="$OUT"
