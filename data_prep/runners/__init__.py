"""The runners of data preparation: local processes and Apache Beam, and the directory of an unfinished job."""
