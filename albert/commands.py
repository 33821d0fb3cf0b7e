"""The console commands of albert that setup.py installs: albert-export is python -m albert.export, and so on.

The console commands of the scripts run_*.py and of data_prep are defined elsewhere. This module imports no large
libraries: a command's module is imported when the command is called.
"""

from __future__ import annotations

from functools import partial

from albert.startup import run_command_of

convert = partial(run_command_of, "albert.convert.__main__")
embed = partial(run_command_of, "albert.embed.__main__")
ensemble = partial(run_command_of, "albert.ensemble")
experiments = partial(run_command_of, "albert.experiments.__main__")
export = partial(run_command_of, "albert.export.__main__")
leaderboard = partial(run_command_of, "albert.leaderboard")
predict = partial(run_command_of, "albert.predict.__main__")
report = partial(run_command_of, "albert.report.__main__")
