"""Serves an exported model with TensorFlow Serving's REST API: `python examples/serve.py --model=models/cola`."""

import argparse
import asyncio
import json
import os
import socket
from pathlib import Path

try:
  from fastapi import FastAPI, Request, Response
  from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest
  from pydantic import ValidationError, conlist, constr, create_model
  from starlette.requests import ClientDisconnect
  from uvicorn import run
except ImportError as error:
  raise SystemExit(f"error: {error}: pip install 'fastapi>=0.115' 'prometheus-client>=0.20' 'uvicorn>=0.30'") from error
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", type=Path, required=True, default=argparse.SUPPRESS, help="directory of a model")
parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all of the machine")
parser.add_argument("--port", type=int, default=8501, help="port to listen on")
parser.add_argument("--max_batch", type=int, default=32, help="maximum number of instances in one call of the model")
parser.add_argument("--max_wait_ms", type=int, default=2, help="milliseconds in which instances are collected")
parser.add_argument("--max_queue", type=int, default=256, help="maximum number of instances that wait for the model")
parser.add_argument("--max_bytes", type=int, default=4 << 20, help="maximum size of the body of a request")
flags = parser.parse_args()
versions = [path for path in (flags.model.resolve(), *flags.model.resolve().glob("*")) if path.name.isdigit()]
version = max(versions, key=lambda folder: int(folder.name), default=None) or parser.error(
  f"no model in {flags.model}: give a directory that albert.export wrote, such as models/NAME"
)
try:
  family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
  socket.create_server((flags.host, flags.port), family=family).close()
except (OSError, OverflowError) as error:
  parser.error(f"--host={flags.host} --port={flags.port}: {error}: give another --port, or an address of this machine")
stderr = os.dup(2)
if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "3":  # TensorFlow prints lines before it reads this
  os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
  import tensorflow as tf  # takes seconds, so the flags are checked first
  import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)
  from google.protobuf.json_format import MessageToDict
  from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
finally:
  os.dup2(stderr, 2)

model = tf.saved_model.load(str(version))
app, model_is_free, path = FastAPI(openapi_url=None), asyncio.Lock(), f"/v1/models/{version.parent.name}"
waiting, request_types = {name: [] for name in model.signatures}, {}  # waiting: instances, futures of their predictions
REQUESTS = Counter("serve_requests", "Requests by the status of the answer", ["status"])
SECONDS = Histogram("serve_request_seconds", "Time from a request for predictions to its answer")
BATCH_SIZE = Histogram("serve_batch_size", "Instances in one call of the model", buckets=[2**i for i in range(9)])
Gauge("serve_queue_length", "Instances that wait for the model").set_function(lambda: sum(map(len, waiting.values())))
STRICT = {"extra": "forbid", "strict": True}
TYPES = {tf.string: (None, str, list[str]), tf.int32: (None, int, list[int], list[list[int]])}  # by rank
Header = create_model("Header", signature_name=(constr(pattern=f"^({'|'.join(waiting)})$"), "serving_default"))


def compute(name: str, rows: list[dict]) -> list:
  """Returns the prediction of each instance. A batch that fails is halved until the wrong instance is found."""
  try:
    outputs = model.signatures[name](**{field: tf.constant([row[field] for row in rows]) for field in rows[0]})
    values = zip(*(output.numpy().tolist() for output in outputs.values()), strict=True)
    return [dict(zip(outputs, row, strict=True)) if len(row) > 1 else row[0] for row in values]
  except Exception as error:
    return [error] if len(rows) == 1 else compute(name, rows[: len(rows) // 2]) + compute(name, rows[len(rows) // 2 :])


def respond(value: dict, status: int = 200) -> Response:
  REQUESTS.labels(status).inc()
  headers = {"Retry-After": "1"} if status == 503 else None
  return Response(json.dumps(value, default=bytes.decode, allow_nan=False), status, headers, "application/json")


async def predict(request: Request) -> Response:
  """Answers a request. Instances that arrive within max_wait_ms, or while the model computes, share a batch."""
  with SECONDS.time():
    is_small = int(request.headers.get("content-length", 1 << 62)) <= flags.max_bytes
    body = b"".join([chunk async for chunk in request.stream() if is_small])  # a client may read the answer only then
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
      return respond({"error": f"send the body without the Content-Encoding {encoding}"}, 415)
    if not is_small:
      return respond({"error": f"a request needs a Content-Length of at most {flags.max_bytes} bytes"}, 413)
    if (encoding := json.detect_encoding(body)) != "utf-8":  # a byte order mark, UTF-16 or UTF-32
      body = body.decode(encoding, "replace").encode()
    try:
      name = Header.model_validate_json(body).signature_name
      instances = [(dict(row), asyncio.Future()) for row in request_types[name].model_validate_json(body).instances]
    except ValidationError as error:
      return respond({"error": ": ".join(map(str, [*error.errors()[0]["loc"], error.errors()[0]["msg"]]))}, 400)
    if sum(map(len, waiting.values())) + len(instances) > flags.max_queue:
      return respond({"error": "too many instances wait for the model: try again later"}, 503)
    waiting[name] += instances
    await asyncio.sleep(flags.max_wait_ms / 1000)
    async with model_is_free:
      while not instances[-1][1].done():
        batch, waiting[name] = waiting[name][: flags.max_batch], waiting[name][flags.max_batch :]
        BATCH_SIZE.observe(len(batch))
        predictions = await asyncio.to_thread(compute, name, [row for row, _ in batch])
        for (_, future), prediction in zip(batch, predictions, strict=True):
          future.set_result(prediction)
  if errors := [future.result() for _, future in instances if isinstance(future.result(), Exception)]:
    status = 400 if isinstance(errors[0], TypeError | ValueError | tf.errors.InvalidArgumentError) else 500
    reason = str(errors[0]).partition("assertion failed: [")[2].partition("]")[0]
    return respond({"error": reason or "the model cannot compute one of the instances"}, status)
  return respond({"predictions": [future.result() for _, future in instances]})


for name, signature in model.signatures.items():
  fields = {key: TYPES[spec.dtype][spec.shape.rank] for key, spec in signature.structured_input_signature[1].items()}
  instances = conlist(create_model("Instance", __config__=STRICT, **fields), min_length=1, max_length=flags.max_queue)
  request_types[name] = create_model("Request", __config__=STRICT, signature_name=(str, name), instances=instances)
  compute(name, json.loads((version / f"examples/{name}.json").read_bytes())["instances"])  # a first call is slow
state = {"version": version.name, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
graph = SavedModel.FromString((version / "saved_model.pb").read_bytes()).meta_graphs[0]
signatures = {name: MessageToDict(graph.signature_def[name], preserving_proto_field_name=True) for name in waiting}
spec = {"name": version.parent.name, "signature_name": "", "version": version.name}
metadata = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}
for prefix in (path, f"{path}/versions/{version.name}"):
  app.post(prefix + ":predict")(predict)
  app.get(prefix)(lambda: {"model_version_status": [state]})
  app.get(prefix + "/metadata")(lambda: metadata)
app.get("/healthz")(lambda: {"status": "ok"})
app.get("/readyz")(lambda: Response(status_code=503 if sum(map(len, waiting.values())) >= flags.max_queue else 200))
app.get("/metrics")(lambda: Response(generate_latest(), media_type=CONTENT_TYPE_LATEST))
use = f"use GET {path} or POST {path}:predict"
for code in (404, 405):
  app.exception_handler(code)(lambda _, error: respond({"error": f"{error.detail}: {use}"}, error.status_code))
app.exception_handler(ClientDisconnect)(lambda *_: respond({"error": "the body of the request is not complete"}, 400))
run(app, host=flags.host, port=flags.port, access_log=False, limit_concurrency=1024, timeout_graceful_shutdown=60)
