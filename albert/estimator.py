"""The Estimator trains, evaluates, predicts and exports a model for one task. The scripts and the Python API use it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import RunConfig
from albert.data.dataset import Dataset
from albert.data.examples import EXAMPLE_INDEX
from albert.data.rows import DataSource, TableData, is_path, is_text
from albert.errors import UserError, python_messages
from albert.io import files
from albert.io.progress import elapsed_time, log
from albert.io.text import format_value
from albert.runs import logs, output_files
from albert.runs.logs import MetricsCallback, format_evaluation, format_metrics
from albert.settings.resolve import check_initial_weights, make_defined_task, will_evaluate
from albert.tasks.base import DatasetOutputs, Task
from albert.tasks.definitions import PYTHON_NAMES, TaskDefinition
from albert.tasks.splits import FILE_FIELDS, TEST
from albert.training.distribution import Cluster, check_batches, check_memory
from albert.training.evaluator import Evaluator
from albert.training.model_weights import ModelWeights, computing_in, deterministic_ops
from albert.training.run import (
  TrainingResult,
  claim_output_dir,
  failure_warning,
  find_failure,
  read_training_result,
  train_run,
)
from albert.training.run_plan import TrainingPlan, plan_run, plan_training
from albert.weights.checkpoints import CheckpointManager

_DATA_NAMES = {  # those of a task with data; the task of `from_run` has no such arguments
  "train_file": "train",
  "input_file": "train",
  "eval_file": "eval",
  "eval_input_file": "eval",
  "predict_file": "test",
}


def _make_temporary_dir(owner: object) -> str:
  """Makes a directory that this process removes together with `owner`. A forked process leaves it to its parent."""
  path = tempfile.mkdtemp(prefix="albert-")
  weakref.finalize(owner, _remove_in_process, os.getpid(), path)
  return path


def _remove_in_process(pid: int, path: str) -> None:
  if os.getpid() == pid:
    shutil.rmtree(path, ignore_errors=True)


class Estimator:
  """Trains, evaluates and predicts with one task, and exports the model.

  A call of train() continues from the newest checkpoint of output_dir. The run ends with the same weights, bit for
  bit, whether or not it was interrupted.

  Construction and training leave the process as they found it: the global seeds of Python, NumPy, TensorFlow and
  Keras, Keras' global dtype policy and TensorFlow's op determinism are the same afterwards.

  Args:
    task: what to learn and from which data, such as albert.tasks.Classification; or a Task, together with `config`.
    config: all settings, if `task` is a Task. Its do_train, do_eval and do_predict select the files that are checked
      here, and what run() does. train(), evaluate() and predict() may be called in any case.
    init_checkpoint: the weights to start from: a directory of Google's or Hugging Face's weights, the output_dir of a
      run, or a file. The config of the model and the vocabulary are found beside them.
    output_dir: the directory for checkpoints, metrics and results. By default a temporary directory, which is deleted
      together with the Estimator. evaluate(), predict() and export() raise an error once the checkpoints of a run that
      this Estimator has trained or loaded are gone.
    model: the model, if there is no init_checkpoint: the name of a predefined model such as "albert_base", the path of
      an albert_config.json, or a ModelConfig.
    **settings: further settings, with the names of the flags of the scripts: num_train_epochs, train_batch_size,
      learning_rate, max_seq_length, spm_model_file, from_scratch, seed, eval_every_steps and so on. The value of a
      setting that is left out comes from the run in output_dir, else from the task's recipe, else it is the default.

  Attributes:
    task: the task, with its data.
    config: the settings of the run.
    plan: the devices, the precision and the settings of the run.
    model: the built model, with newly initialized weights until train(), evaluate() or predict() loads others. They
      load a checkpoint only if it is not the one that they loaded last, so do not change the weights in between.
    evaluator: computes metrics and outputs of `model`.
    checkpoints: the checkpoints of output_dir.
    results_dir: the directory for metrics and predictions: output_dir, or a temporary one in a worker process that is
      not the chief.
    has_logged_failure: whether the warning that the run has not learned was logged; True suppresses it.

  Raises:
    UserError: a file is missing or cannot be used, a row of the data cannot be used, there is no such device, or
      settings do not fit together.
    RunError: the other processes cannot be reached.

  Example:
    >>> data = [("I liked it.", "good"), ("Never again.", "bad")]
    >>> task = albert.tasks.Classification(train=data, eval=data)
    >>> estimator = albert.Estimator(task, init_checkpoint="downloads/albert_base", num_train_steps=2)
    >>> estimator.train().step
    2
    >>> 0 <= estimator.evaluate()["accuracy"] <= 1
    True
    >>> estimator.predict(["We will come back."])[0].label in ("good", "bad")
    True
  """

  def __init__(
    self,
    task: Task | TaskDefinition,
    config: RunConfig | None = None,
    *,
    init_checkpoint: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | ModelConfig | None = None,
    **settings: Any,
  ):
    if not isinstance(task, Task | TaskDefinition):
      raise UserError(f"task is {format_value(task)}: give a task, such as albert.tasks.Classification(train=...)")
    self._definition = None if isinstance(task, Task) else task
    self.has_logged_failure = False
    self._process_id = os.getpid()
    with self._action():
      if isinstance(task, Task):
        if config is None or settings or init_checkpoint or output_dir or model:
          raise UserError("a Task needs all its settings as config=RunConfig(...), and no others")
      else:
        if config is not None:
          raise UserError("config is for a Task: give the settings of a task definition as arguments")
        settings |= {"init_checkpoint": init_checkpoint, "output_dir": output_dir or _make_temporary_dir(self)}
        task, config = make_defined_task(task, settings | {"model": model})
      self.task, self.config = task, config
      # Files are read first, because connecting to the devices may take minutes.
      actions = {"train": config.do_train, "evaluate": config.do_eval, "predict": config.do_predict}
      self._read_inputs(**actions)
      self.plan = plan_run(config)
      self.config = self.plan.config
      self.strategy = self.plan.strategy
      self._check_batches(**actions)
      check_memory(task.model_config, self.strategy, trains=config.do_train)
      self.cluster = Cluster(self.strategy)
      # Every process writes metrics and predictions. Processes that are not the chief write to a temporary directory.
      self.results_dir = config.output_dir if self.cluster.is_chief else _make_temporary_dir(self)
      self.checkpoints = CheckpointManager(
        files.join(config.output_dir, output_files.CHECKPOINTS),
        keep=config.train.keep_checkpoints,
        model_config=task.model_config,
      )
      with self._running(), self.strategy.scope():
        self._weights = ModelWeights(task, self.plan)
        self.model = self._weights.model
        self.evaluator = Evaluator(
          task, self.model, self.strategy, config.train.eval_batch_size, self.plan.evaluation_precision
        )

  @classmethod
  def from_run(cls, output_dir: str | os.PathLike[str], **settings: Any) -> Estimator:
    """Opens a run that was trained before, to evaluate, predict or export.

    Args:
      output_dir: the directory of the run.
      **settings: settings that may differ from those of the run, such as eval_batch_size or precision. A run that was
        trained on data in memory needs eval_file, the path of a file, to be evaluated.
    Returns: an Estimator with the task, the model and the vocabulary of the run. Labels in its answers are texts.
    Raises:
      UserError: there is no run in the directory, or a setting contradicts it.
    """
    from albert.tasks.definitions import TaskOfRun  # a command needs no definitions

    return cls(TaskOfRun(output_dir), output_dir=output_dir, **settings)

  def _action(self) -> contextlib.AbstractContextManager[None]:
    """In this context, messages name arguments, not flags, unless a command made the Estimator. Refuses a fork."""
    if os.getpid() != self._process_id:
      raise UserError(
        f"the Estimator was made in process {self._process_id}, of which process {os.getpid()} is a fork; there "
        "TensorFlow would wait forever: make the Estimator after the fork, in a process that has not used TensorFlow, "
        'or start processes with multiprocessing.get_context("spawn")'
      )
    if self._definition is None:
      return contextlib.nullcontext()
    return python_messages(PYTHON_NAMES | (_DATA_NAMES if self._definition.file_fields else {}))

  @contextlib.contextmanager
  def _running(self) -> Iterator[None]:
    """In this context, kernels are deterministic if the plan says so, and a lost process or TPU is a RunError."""
    kernels = deterministic_ops() if self.plan.deterministic else contextlib.nullcontext()
    with self.cluster.report_lost_processes(self._advice_after_loss), kernels:
      yield

  def _read_inputs(self, *, train: bool = False, evaluate: bool = False, predict: bool = False) -> None:
    """Reads the input files that these actions need, and checks that results can be written.

    The task keeps what it has read.
    """
    check_initial_weights(self.config, are_needed=train and self.task.needs_initial_weights)
    evaluate = will_evaluate(self.config, train=train, evaluate=evaluate)
    self.task.check_inputs(train=train, evaluate=evaluate, predict=predict)
    if train or evaluate or predict:
      output_files.check_writable(self.config.output_dir)
    if predict:
      name, extension = self.config.predictions_file, self.task.predictions_extension
      if name and not name.endswith(extension):
        raise UserError(f"--predictions_file={name}: give a name that ends in {extension}")
      inputs = {files.absolute(getattr(self.task.data.config, field, "")) for field in FILE_FIELDS.values()}
      if name and files.absolute(name) in inputs:
        raise UserError(f"--predictions_file={name}: is a file that the command reads: give another name")
      for path in self.task.prediction_files(self.config.output_dir, name):
        output_files.check_writable(os.path.dirname(path))

  def _check_batches(self, *, train: bool = False, evaluate: bool = False, predict: bool = False) -> None:
    """Checks the batch sizes that these actions use (see check_batches)."""
    evaluate = will_evaluate(self.config, train=train, evaluate=evaluate) or (predict and self.task.predicts_in_batches)
    check_batches(self.config.train, self.strategy, trains=train, evaluates=evaluate)

  def run(self) -> None:
    """Trains, evaluates and predicts, in this order, as do_train, do_eval and do_predict of the config say.

    It prints the main metrics of the evaluation.

    Raises:
      UserError, RunError, Stopped: see train, evaluate and predict.
    """
    self.train_and_evaluate()
    if self.config.do_predict:
      self.write_predictions()

  def train_and_evaluate(self) -> None:
    """Trains and evaluates, as do_train and do_eval of the config say, and prints the main metrics.

    Raises:
      UserError, RunError, Stopped: see train and evaluate.
    """
    if self.config.do_train:
      with self._action():
        self._train()  # without reading the logs, which train() returns
    if self.config.do_eval:
      metrics = self.evaluate()
      print(f"evaluation: {format_evaluation(metrics, self.task.best_metric, self.task.best_loss)}", flush=True)
      log(f"evaluation: {format_metrics(metrics)}", is_detail=True)

  def train(self, *, callbacks: Sequence[MetricsCallback] = ()) -> TrainingResult:
    """Trains until num_train_steps are done, and writes checkpoints, metrics and curves to output_dir.

    Training starts from the newest checkpoint of output_dir. If there is none, it starts from init_checkpoint, or from
    newly initialized weights if that is empty too.

    Args:
      callbacks: functions that are called as callback(step, metrics) after each logged step and each evaluation.
        `metrics` is a dict of numbers; the names of an evaluation's begin with "eval_", such as "eval_accuracy". An
        exception in one of them ends the training.
    Returns: the step, the metrics of training and of the evaluations during training, and their history.
    Raises:
      UserError: the data, the settings or output_dir cannot be used, for example because output_dir belongs to a run
        with other settings.
      RunError: a loss or a weight is not finite, or another process was lost.
      Stopped: SIGTERM or SIGINT was received; the state has been saved.
    """
    if callable(callbacks) or not all(map(callable, callbacks)):
      raise UserError("callbacks: give a list of functions of (step, metrics); Keras' callbacks are not supported")
    for callback in callbacks:
      try:
        inspect.signature(callback).bind(0, {})
      except TypeError as error:
        raise UserError(f"callbacks: {callback!r}: {error}: give functions of (step, metrics)") from error
    with self._action():
      self._train(callbacks)
      return read_training_result(self._weights.step, self.config.output_dir, self.results_dir)

  def _train(self, callbacks: Sequence[MetricsCallback] = ()) -> None:
    self._read_inputs(train=True)
    self._check_batches(train=True)
    with self._running():
      self._weights.step = train_run(
        self.task,
        self._weights,
        self.plan,
        cluster=self.cluster,
        checkpoints=self.checkpoints,
        evaluator=self.evaluator,
        results_dir=self.results_dir,
        callbacks=callbacks,
      )
    if not self.config.do_eval:
      self._log_failure({})

  def evaluate(self) -> dict[str, float]:
    """Evaluates the newest or the best checkpoint, as select_checkpoint says; if there is none, init_checkpoint.

    It writes the metrics to eval_results.json. The task may write further files, such as predictions. A line on stderr
    names the checkpoint, if its weights had to be loaded.

    Returns: the metrics by name. With several evaluation sets, the name of the set comes first: `matched_accuracy`.
    Raises:
      UserError: there are no weights to evaluate, or they belong to other settings of the task.
      RunError: another process was lost.
    """
    with self._action(), self._running():
      self._read_inputs(evaluate=True)
      self._check_batches(evaluate=True)
      step = self._weights.load_trained(self.checkpoints, "evaluating")
      self.task.read_run(self.config.output_dir)
      latest, self.evaluator.latest = self.evaluator.latest, None
      if latest and latest[0] == step:
        metrics, outputs = latest[1:]
      else:
        with elapsed_time("evaluating"):
          metrics, outputs = self.evaluator.evaluate(self.config.train.max_eval_steps)
      files.makedirs(self.results_dir)
      for split, outputs_of_split in outputs.items():
        self.task.write_evaluation(split, outputs_of_split, self.results_dir)
      files.write_json(files.join(self.results_dir, output_files.EVAL_RESULTS), {"step": step, **metrics})
      self._log_failure(metrics, sum(len(of_split[EXAMPLE_INDEX]) for of_split in outputs.values() if of_split))
    return metrics

  def _log_failure(self, metrics: Mapping[str, float], num_examples: int = 0) -> None:
    """Logs once whether the run has not learned more than guessing."""
    directory, loss_name = self.results_dir, self.task.best_loss
    if not self.has_logged_failure and (failure := find_failure(directory, metrics, loss_name, num_examples)):
      self.has_logged_failure = True
      log(failure_warning(failure, directory, self.task, self.config, is_command=self._definition is None))
    elif self.config.do_train and (guess := metrics.get("masked_lm_guessing_loss")):
      loss, evaluations = metrics["masked_lm_loss"], logs.read(files.join(directory, output_files.EVALUATIONS))
      earlier = [value for line in evaluations if (value := line["masked_lm_loss"]) is not None]
      if loss > max(guess, min(earlier, default=0.0)):  # else it still falls
        reason = f"the held-out masked_lm_loss is {loss:.4g}, worse than that of guessing, {guess:.4g}"
        log(f"warning: {reason}: if the training loss is lower, the text is memorized: give more text, or fewer steps")

  def predict(self, data: TableData | None = None) -> list[Any]:
    """Predicts with the newest or the best checkpoint, as select_checkpoint says; if there is none, init_checkpoint.

    Args:
      data: what to predict: a text, a list of texts, of pairs or of dicts, a frame, a dict of columns, or the path of a
        file. It needs no labels. The predictions are only returned. If it is None, the task's test set is predicted,
        and the predictions are also written to files in output_dir (see write_predictions).
    Returns: an answer for each row or question, in order (see albert.tasks.answers): a ClassAnswer, a ChoiceAnswer, a
      SpanAnswer, or the number of a regression. For a pretrained model it is a list with a dict for each [MASK]: the
      most probable pieces -> their probabilities.
    Raises:
      UserError: there are no weights to predict with, or a row cannot be used; the message names row and column.
      RunError: another process was lost.
    """
    if data is None:
      return self._predict(with_answers=True)[1]
    with self._action():
      if not is_path(data) and hasattr(data, "__len__") and not len(data):
        return []
      from albert.tasks.definitions import existing_file

      if is_path(data) and not is_text(data):
        source: DataSource = existing_file(data, "predict")
      else:
        source = self.task.prediction_rows([data] if isinstance(data, str) else data)
      task = self.task.with_data(TEST, source, cache=False)
      task.check_inputs(train=False, evaluate=False, predict=True)
      self._check_batches(predict=True)
      self._weights.load_trained(self.checkpoints, "predicting")
      task.read_run(self.config.output_dir)
      with self._running(), computing_in(self.plan.evaluation_precision, self.model):
        answers = task.answers(self.model, self._compute_outputs)
    return self._definition.convert_answers(answers) if self._definition else answers

  def write_predictions(self) -> list[str]:
    """Predicts the task's test set, and writes the predictions to files in output_dir, also over existing ones.

    Returns: the paths of the files.
    Raises:
      UserError: there are no weights to predict with, or a file to predict cannot be used.
      RunError: another process was lost.
    """
    return self._predict(with_answers=False)[0]

  def _predict(self, *, with_answers: bool) -> tuple[list[str], list[Any]]:
    """Writes the predictions of the test set. Returns the paths of the files, and with `with_answers` the answers."""
    with self._action(), self._running():
      self._read_inputs(predict=True)
      self._check_batches(predict=True)
      self._weights.load_trained(self.checkpoints, "predicting")
      self.task.read_run(self.config.output_dir)
      predictions_file = self.config.predictions_file
      if predictions_file and not self.cluster.is_chief:
        predictions_file = files.join(self.results_dir, os.path.basename(predictions_file))
      for path in self.task.prediction_files(self.results_dir, predictions_file):
        files.makedirs(os.path.dirname(files.absolute(path)))
      # The files and the answers share the outputs, so the model is run only once on each dataset.
      compute_outputs = functools.cache(self._compute_outputs)
      with computing_in(self.plan.evaluation_precision, self.model):
        paths = list(self.task.predict(self.model, compute_outputs, self.results_dir, predictions_file))
        answers = self.task.answers(self.model, compute_outputs) if with_answers else []
    for path in paths:
      log(f"wrote {path}")
    return paths, self._definition.convert_answers(answers) if self._definition else answers

  def _compute_outputs(self, data: Dataset) -> DatasetOutputs:
    """Returns the outputs of the model for all examples of a dataset."""
    return self.evaluator.run(data)[1]

  def export(
    self, directory: str | os.PathLike[str], *, form: str = "", version: int = 0, formats: Sequence[str] = ()
  ) -> str:
    """Writes the model as a SavedModel that takes texts, for TensorFlow Serving and `python -m albert.predict`.

    Args:
      directory: the directory of the model, such as "models/kind". Each export is a new version in it.
      form: what the exported model does, such as "embeddings" (see docs/serving.md); "" for the task of this Estimator.
      version: a version number that does not exist yet; 0 for the greatest existing version plus one.
      formats: further formats to write, such as "onnx" or "tflite_int8" (see docs/serving.md).
    Returns: the directory of the version, such as "models/kind/1".
    Raises:
      UserError: there is no trained checkpoint, or it cannot be served in this form.
      RunError: the exported model fails its checks.
    """
    from albert.export.export_model import export_model  # imports tensorflow-text, which training does not need

    parent, name = os.path.split(os.fspath(directory).rstrip("/"))
    has_checkpoint = bool(self.checkpoints.steps())
    checkpoint = self.config.output_dir if has_checkpoint else self.config.init_checkpoint
    with self._action():
      self._weights.check_not_lost(self.checkpoints, has_checkpoint=has_checkpoint)
      if not checkpoint:
        raise UserError(f"{self.config.output_dir} has no checkpoint to export: call train(), or give init_checkpoint")
      if not (form or has_checkpoint):
        self._weights.load_trained(self.checkpoints, "exporting")  # fails if the weights lack a head of the task
      return export_model(checkpoint, parent or ".", task=form, name=name, version=version, formats=tuple(formats))

  def _advice_after_loss(self) -> str:
    """Returns the end of an error message: how to continue the run after another process or the TPU was lost."""
    try:
      steps = self.checkpoints.steps()
    except (OSError, tf.errors.OpError):  # the file system of output_dir does not answer either
      steps = []
    newest = f"step-{steps[-1]}" if steps else "the last checkpoint, if there is one"
    if self.cluster.num_processes > 1:
      return f"start all processes again with the same command, and they continue from {newest}"
    return f"start it again with the same command, and it continues from {newest}"

  def claim_output_dir(self) -> TrainingPlan:
    """Makes output_dir the directory of this run: writes config.json, environment.json and the task's files.

    Returns: the plan of the training.
    Raises:
      UserError: output_dir belongs to a run with other settings, or the weights to start from do not fit.
    """
    plan = plan_training(self.plan, self.task.training_stages())
    claim_output_dir(self.task, self.plan, plan, self.checkpoints, is_chief=self.cluster.is_chief)
    return plan
