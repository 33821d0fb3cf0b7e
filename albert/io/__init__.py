"""Files, JSON, TFRecords, worker processes and progress lines. Nothing here knows ALBERT."""
