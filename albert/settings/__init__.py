"""The settings of a run: their values come from the command, the run in output_dir, a recipe, or the defaults."""
