"""TFRecords: the contract of features, the writer, and the input pipeline."""
