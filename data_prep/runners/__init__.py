"""Where data preparation runs: local processes or an Apache Beam runner, and the files that both leave on the way."""
