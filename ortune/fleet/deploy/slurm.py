"""A Slurm job array: the command on a number of nodes, each for itself.

Source: https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import math

from ortune.fleet.deploy.shell import CODES, export_storage, join_words
from ortune.fleet.deploy.task import Task


def write(task: Task) -> str:
    """Return the script for sbatch.

    Raises:
        UsageError: A word cannot be written.
    """
    command = join_words(task, '"$SLURM_ARRAY_TASK_ID"')
    # Steps do not inherit --cpus-per-task since Slurm 22.05. Without it, the step must not be bound to a single core.
    step = f"--cpus-per-task={task.cpus} --cpu-bind=cores" if task.cpus else "--cpu-bind=none"
    lines = [
        "#!/bin/bash",
        *task.header,
        "# Start it with: sbatch FILE",
        "# Each element of the array has a node to itself. Elements that run one after another may get the same node.",
        f"#SBATCH --job-name={task.name}",
        f"#SBATCH --array=0-{task.n_nodes - 1}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *([f"#SBATCH --cpus-per-task={task.cpus}"] if task.cpus else []),
        "#SBATCH --exclusive",
        *([f"#SBATCH --constraint={task.constraint}"] if task.constraint else []),
        f"#SBATCH --time={math.ceil(task.deadline_s / 60)}",
        f"#SBATCH --output={task.name}-%A_%a.log",
        "",
        *export_storage(task),
        'export ORTUNE_NODE="$SLURMD_NODENAME"',
        "",
        "code=0",
        f"srun --nodes=1 --ntasks=1 {step} {command} || code=$?",
        f"# {CODES.replace('|', ' and ')} are results: a check failed, or the measurements do not decide.",
        f"case $code in {CODES}) code=0 ;; esac",
        'exit "$code"',
    ]
    return "\n".join(lines)
