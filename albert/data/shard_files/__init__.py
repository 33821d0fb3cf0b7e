"""The files of a pretraining dataset: shards of TFRecords, their features and their manifest."""
