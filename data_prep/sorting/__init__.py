"""External merge sort of packed instances by their random keys: sorted files, merge passes and shards."""
