"""Makes tests/golden/left: directories that the code of an earlier commit left. left/README.md tells how to run it."""

from __future__ import annotations

import json
import os
import platform
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEFT = Path(__file__).parent / "left"
_WORDS = "anna john met saw sold the an old letter river house bread in at paris berlin who what where ? . and not"
# Texts that the exported model answers.
TEXTS = ("anna sold the bread in paris .", "who met john in berlin ?")
_PEOPLE, _THINGS, _PLACES = ("anna", "john"), ("letter", "river", "house", "bread"), ("paris", "berlin")
_MODEL = (
  "--hidden_size=8 --embedding_size=4 --num_hidden_layers=1 --num_attention_heads=2 --intermediate_size=16 "
  "--max_position_embeddings=32 --initializer_range=0.2 --hidden_dropout_prob=0 --attention_probs_dropout_prob=0 "
  "--classifier_dropout_prob=0 --num_train_steps=4 --num_warmup_steps=1 --learning_rate=0.01 --train_batch_size=4 "
  "--eval_batch_size=4 --log_every_steps=1 --save_checkpoints_steps=2 --precision=float32 --do_train --do_eval"
)
_FINETUNING = f"--from_scratch {_MODEL}"
# Name of a directory -> the command that made it, without --spm_model_file and --output_dir.
COMMANDS = {
  "classification": f"run_classifier.py {_FINETUNING} --task_name=custom --train_file={{data}}/rows.tsv "
  "--eval_file={data}/rows.tsv --predict_file={data}/rows.tsv --text_columns=text --max_seq_length=16 --do_predict",
  "squad": f"run_squad.py {_FINETUNING} --train_file={{data}}/squad.json --predict_file={{data}}/squad.json "
  "--version_2_with_negative --max_seq_length=24 --max_query_length=8 --doc_stride=4",
  "race": f"run_race.py {_FINETUNING} --train_file={{data}}/race.jsonl --eval_file={{data}}/race.jsonl "
  "--max_seq_length=24 --max_qa_length=12",
  "tagging": f"run_tagging.py {_FINETUNING} --train_file={{data}}/words.conll --eval_file={{data}}/words.conll "
  "--max_seq_length=16 --doc_stride=4",
  "pretraining": f"run_pretraining.py {_MODEL} --input_file={{data}}/shards/*.tfrecord "
  "--eval_input_file={data}/shards/*.tfrecord",
  "preparation": "-m data_prep.create_pretraining_data --input_file={data}/texts.jsonl --sentences=lines "
  "--max_seq_length=16 --dupe_factor=1 --num_shards=3",
}
# The file or directory after whose renaming a command is killed.
_LAST_NAME = dict.fromkeys(COMMANDS, "step-2") | {"preparation": "shard-00000.json"}


def argv_of(name: str, data: Path, output_dir: Path) -> list[str]:
  """Returns the words of a command after `python`."""
  words = [word.format(data=data) for word in COMMANDS[name].split()]
  return [*words, f"--spm_model_file={data / 'vocab.txt'}", f"--output_dir={output_dir}"]


def _write_data(data: Path) -> None:
  """Writes the vocabulary and the files of all tasks: sentences of the pattern "anna sold the letter in paris"."""
  data.mkdir(parents=True)
  (data / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split()]) + "\n")
  rows, tagged, questions, paragraphs = ["text\tlabel"], [], [], []
  for index in range(8):
    person, thing, place = _PEOPLE[index % 2], _THINGS[index % 4], _PLACES[index // 4]
    words = [person, "sold", "the", thing, "in", place, "."]
    text = " ".join(words)
    rows.append(f"{text}\t{'good' if index % 4 else 'bad'}")
    tags = {person: "B-PER", place: "B-LOC"}
    tagged.append("".join(f"{word} {tags.get(word, 'O')}\n" for word in words))
    questions.append({"article": text, "question": "where ?", "options": list(_PLACES), "answer": index // 4})
    answers = [{"text": thing, "answer_start": text.index(thing)}]
    qas = [{"id": f"a{index}", "question": f"what sold {person} ?", "answers": answers, "is_impossible": False},
           {"id": f"b{index}", "question": "who saw bread ?", "answers": [], "is_impossible": True}]  # fmt: skip
    paragraphs.append({"context": text, "qas": qas})
  (data / "rows.tsv").write_text("\n".join(rows) + "\n")
  (data / "words.conll").write_text("\n".join(tagged))
  (data / "race.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
  squad = {"version": "v2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}
  (data / "squad.json").write_text(json.dumps(squad) + "\n")
  texts = ["\n".join(row.partition("\t")[0] for row in rows[1 + start : 7 + start]) for start in range(3)]
  (data / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def make(left: Path) -> None:
  """Makes all directories in `left`, which must not exist, with the code in the working directory."""
  data = left / "data"
  _write_data(data)
  expected: dict[str, Any] = {}
  with tempfile.TemporaryDirectory() as temporary:
    subprocess.run([sys.executable, *argv_of("preparation", data, data / "shards")], check=True)
    for name in COMMANDS:
      argv, last_name = argv_of(name, data, left / name), _LAST_NAME[name]
      killed = subprocess.run([sys.executable, __file__, "--kill-after", last_name, *argv], check=False)
      assert killed.returncode == -signal.SIGKILL, name
      if name != "preparation":
        whole = Path(temporary, name)
        subprocess.run([sys.executable, *argv_of(name, data, whole)], check=True)
        losses = [json.loads(line)["loss"] for line in (whole / "metrics.jsonl").read_text().splitlines()]
        expected[name] = {"losses": losses, "results": json.loads((whole / "eval_results.json").read_text())}
    shutil.copytree(Path(temporary, "classification"), left / "finished")
  export = ["-m", "albert.export", f"--checkpoint={left / 'finished'}", f"--output_dir={left}", "--name=export"]
  subprocess.run([sys.executable, *export], check=True)
  predict = [sys.executable, "-m", "albert.predict", f"--model={left / 'export'}", "--format=lines"]
  answered = subprocess.run(predict, input="\n".join(TEXTS), check=True, stdout=subprocess.PIPE, text=True)
  expected["export"] = [json.loads(line) for line in answered.stdout.splitlines()]
  shutil.make_archive(str(left / "export"), "xztar", left / "export")  # 4.5 MB, a thirtieth of it as an archive
  shutil.rmtree(left / "export")
  (left / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
  for path in [*left.rglob("*.png"), *left.rglob("*.tfevents.*")]:  # no later command reads them
    path.unlink()
  for path in [*left.rglob(".lock"), *left.rglob("environment.json")]:
    path.write_text(path.read_text().replace(f'"{platform.node()}"', '"example"'))


def _run_and_kill(last_name: str, argv: list[str]) -> None:
  """Runs a command in this process, and kills it as soon as it has renamed a file or directory to `last_name`."""
  replace = os.replace

  def replace_and_kill(source: Any, target: Any, **options: Any) -> None:
    replace(source, target, **options)
    if os.path.basename(target) == last_name:
      os.kill(os.getpid(), signal.SIGKILL)

  vars(os).update(replace=replace_and_kill)
  if argv[0] == "-m":
    sys.argv = argv[1:]
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
  else:
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
  if sys.argv[1:2] == ["--kill-after"]:
    _run_and_kill(sys.argv[2], sys.argv[3:])
  else:
    make(Path(sys.argv[1]))
