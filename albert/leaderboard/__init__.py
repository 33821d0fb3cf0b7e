"""Fine-tunes a checkpoint on GLUE, SQuAD and RACE as the paper does: `python -m albert.leaderboard --help`."""
