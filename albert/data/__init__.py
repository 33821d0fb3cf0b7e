"""Datasets: shards of TFRecords for pretraining, tokenized examples in memory for fine-tuning.

- schema: names, lengths, types and ranges of the features of a pretraining record, and checks of records.
- manifest: manifest.json, the description of the shards that data preparation writes, and hashes of files.
- shards: which files a dataset consists of, how many examples each has, and their hashes.
- dataset: Dataset, the interface that the training loop and the evaluator read.
- pipeline: ShardDataset, which reads shards.
- batches: ExampleDataset, which batches tokenized examples of similar length.
- examples: TokenizedExamples, made in parallel and cached on disk.
- masks, dynamic_masking: masked-LM targets, in data preparation and during training.
- random_streams: random numbers as a function of a key and a counter.
- pretraining_examples: masks and sentence-order pairs of single examples, for the Python API.
- tables, rows: tables of text, in TSV, CSV, JSON-lines and Parquet files or in memory.
"""
