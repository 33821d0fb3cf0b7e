"""Compares recipes of pretraining by the time until the held-out masked LM loss reaches that of the reference.

  python benchmarks/bench_time_to_loss.py --corpus='novels/train/*.txt' --heldout_corpus='novels/heldout/*.txt' \
    --glue_dir=glue --output_dir=time_to_loss --jobs=2

The recipes are in benchmarks/time_to_loss/recipes.json; the first one is the reference. With --jobs=2, two runs train
at the same time, each on one of two cores. A stopped command continues where it was stopped. table.md and figure.png in
--output_dir have the results of all finished runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.experiments import runner  # noqa: E402
from albert.io import files  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.time_to_loss import results  # noqa: E402
from benchmarks.time_to_loss.plan import RECIPES_FILE, RecipePlan, read_recipes  # noqa: E402

FLAGS = flags.FLAGS


def main() -> None:
  """Runs the plan, and prints the table."""
  content = read_recipes(FLAGS.recipes)
  names = [recipe.name for recipe in content.recipes]
  if unknown := set(FLAGS.only) - set(names):
    raise UserError(f"--only: {sorted(unknown)[0]!r} is not a recipe of {FLAGS.recipes}: {', '.join(names)}")
  plan = RecipePlan(
    output_dir=os.path.abspath(FLAGS.output_dir),
    corpus=FLAGS.corpus,
    heldout_corpus=FLAGS.heldout_corpus,
    glue_dir=FLAGS.glue_dir,
    content=content,
    only=(names[0], *FLAGS.only) if FLAGS.only else (),
  )
  rows = runner.run_plan(plan, FLAGS.jobs)
  trials = plan.trials()
  curves = [results.read_curve(trial.run) for trial in trials]
  table = results.make_table(trials, curves, {recipe.name: recipe.changes for recipe in content.recipes}, rows)
  text = f"Machine: {machine.describe()}; {FLAGS.jobs} run(s) at a time.\n\n{table}"
  files.write_atomically(files.join(plan.output_dir, "table.md"), text)
  files.write_atomically(files.join(plan.output_dir, "figure.png"), results.draw(trials, curves))
  print(text, end="")


if __name__ == "__main__":
  flags.DEFINE_string("corpus", None, "comma-separated globs of the text to train on", required=True)
  flags.DEFINE_string("heldout_corpus", None, "comma-separated globs of the text to evaluate on", required=True)
  flags.DEFINE_string("glue_dir", "", "folder of GLUE; empty: no model is fine-tuned")
  flags.DEFINE_string("output_dir", None, "directory for shards, runs and results", required=True)
  flags.DEFINE_string("recipes", str(RECIPES_FILE), "recipes to compare: a file of the same form")
  flags.DEFINE_list("only", [], "names of recipes to run besides the reference; default: all")
  flags.DEFINE_integer("jobs", 1, "runs at the same time, each on its share of the cores", lower_bound=1)
  app.run(main)
