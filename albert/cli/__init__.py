"""What the run_* scripts share: flags, --help, and where each setting comes from."""

from albert.cli.scripts import run as run
from albert.cli.scripts import task_and_config as task_and_config
