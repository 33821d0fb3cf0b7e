"""Files, JSON, TFRecords, worker processes and progress output. These modules are independent of ALBERT."""
