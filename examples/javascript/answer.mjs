// Answers texts with an exported ONNX model (`--formats=onnx`) in Node.js, without Python and TensorFlow:
//
//   node answer.mjs models/cola/1 < texts.txt
//
// Each line is a text, or two texts separated by a tab if the model takes pairs. For each line it prints a line of JSON.
// It answers for the forms classifier, regression, sentence_order and embeddings, with a SentencePiece vocabulary.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { CLS, SEP, Tokenizer } from "./tokenizer.mjs";

const FORMS = ["classifier", "regression", "sentence_order", "embeddings"];
const BATCH_SIZE = 8;

/** Joins the ids of one text, or of a pair, to [CLS] a [SEP] b [SEP], and cuts what is too long as in training. */
function pack(texts, maxLength) {
  const ids = texts.map((text) => [...text]);
  const room = maxLength - 1 - ids.length; // without [CLS] and one [SEP] for each text
  while (ids.reduce((sum, text) => sum + text.length, 0) > room) {
    const longer = ids.length === 2 && ids[0].length > ids[1].length ? 0 : ids.length - 1;
    ids[longer].length -= 1;
  }
  return [CLS, ...ids.flatMap((text) => [...text, SEP])];
}

/** Pads sequences to the longest one. Returns the three inputs of the model, int32 [batch, length]. */
function makeInputs(sequences) {
  const length = Math.max(...sequences.map((sequence) => sequence.length));
  const tensor = (valuesOf) => {
    const rows = sequences.map((sequence) => {
      const values = valuesOf(sequence);
      return [...values, ...Array(length - values.length).fill(0)]; // 0 is also the id of padding
    });
    return new ort.Tensor("int32", Int32Array.from(rows.flat()), [sequences.length, length]);
  };
  return {
    input_ids: tensor((sequence) => sequence),
    input_mask: tensor((sequence) => sequence.map(() => 1)),
    segment_ids: tensor((sequence) => sequence.map((_, i) => (i > sequence.indexOf(SEP) ? 1 : 0))),
  };
}

/** Splits a tensor [batch, ...] into plain arrays or numbers, one for each row. */
function rowsOf(tensor) {
  const size = tensor.data.length / tensor.dims[0];
  const rows = Array.from({ length: tensor.dims[0] }, (_, i) => Array.from(tensor.data.slice(i * size, (i + 1) * size)));
  return tensor.dims.length === 1 ? rows.map(([value]) => value) : rows;
}

async function main(directory) {
  for (const file of ["assets.extra/servable.json", "model.onnx"]) {
    if (!existsSync(join(directory, file))) {
      throw new Error(`${directory} has no ${file}: give a version exported with --formats=onnx, such as models/NAME/1`);
    }
  }
  const description = JSON.parse(readFileSync(join(directory, "assets.extra/servable.json"), "utf8"));
  if (!FORMS.includes(description.task)) {
    throw new Error(`${directory}: this example does not answer for the form ${description.task}`);
  }
  const kind = description.vocabulary?.kind ?? "sentencepiece"; // earlier exports do not say it
  if (kind !== "sentencepiece") {
    throw new Error(`${directory}: its vocabulary is of the kind ${kind}: this example reads sentencepiece only`);
  }
  const tokenizer = new Tokenizer(join(directory, "assets/spiece.model"), {
    doLowerCase: description.do_lower_case,
    keepAccents: description.keep_accents,
    convertQuotes: description.convert_quotes,
  });
  const session = await ort.InferenceSession.create(join(directory, "model.onnx"));
  const lines = readFileSync(0, "utf8").replace(/\r?\n$/, "").split(/\r?\n/);
  const numTexts = description.fields.length;
  const sequences = lines.map((line, i) => {
    const texts = numTexts === 1 ? [line] : line.split("\t");
    if (texts.length !== numTexts) throw new Error(`line ${i + 1} has ${texts.length} columns instead of ${numTexts}`);
    return pack(texts.map((text) => tokenizer.encode(text)), description.max_seq_length);
  });
  for (let first = 0; first < sequences.length; first += BATCH_SIZE) {
    const batch = sequences.slice(first, first + BATCH_SIZE);
    const outputs = await session.run(makeInputs(batch));
    const columns = Object.fromEntries(Object.entries(outputs).map(([name, tensor]) => [name, rowsOf(tensor)]));
    for (let row = 0; row < batch.length; row++) {
      const answer = Object.fromEntries(Object.entries(columns).map(([name, rows]) => [name, rows[row]]));
      const best = answer.probabilities?.indexOf(Math.max(...answer.probabilities));
      console.log(JSON.stringify(best === undefined ? answer : { label: description.labels[best], ...answer }));
    }
  }
}

if (process.argv.length !== 3) {
  console.error("usage: node answer.mjs DIRECTORY < TEXTS, where DIRECTORY is an exported model with model.onnx");
  process.exit(2);
}
main(process.argv[2]).catch((error) => {
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
});
