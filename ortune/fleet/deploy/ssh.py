"""A script that runs the command on several hosts over ssh, at the same time.

Source: ssh(1)
"""

from __future__ import annotations

from ortune.export.literals import SHELL
from ortune.fleet.deploy.shell import CODES, export_storage, join_words
from ortune.fleet.deploy.task import Task


def write(task: Task) -> str:
    """Return the script, whose arguments are the hosts.

    Raises:
        UsageError: A word cannot be written.
    """
    command = join_words(task, '"$(uname -n)"')
    remote = "\n".join([*export_storage(task), f"exec {command}"])
    lines = [
        "#!/bin/bash",
        *task.header,
        "# Start it with: bash FILE HOST...",
        "# ssh must log in without a password. The output of each host is written to a file of its own.",
        '[ $# -gt 0 ] || { echo "usage: bash $0 HOST..." >&2; exit 2; }',
        "",
        "# The variables are those of the hosts.",
        "# shellcheck disable=SC2016",
        f"remote={SHELL.quote(remote)}",
        "hosts=()",
        "children=()",
        'for host in "$@"; do',
        f'  ssh -n -o BatchMode=yes -- "$host" "$remote" >"{task.name}-${{host//\\//_}}.log" 2>&1 &',
        '  hosts+=("$host")',
        '  children+=("$!")',
        "done",
        "",
        "failed=0",
        'for n in "${!hosts[@]}"; do',
        "  code=0",
        '  wait "${children[$n]}" || code=$?',
        '  echo "${hosts[$n]}: exit code $code"',
        f"  # {CODES.replace('|', ' and ')} are results: a check failed, or the measurements do not decide.",
        f"  case $code in 0|{CODES}) ;; *) failed=1 ;; esac",
        "done",
        'exit "$failed"',
    ]
    return "\n".join(lines)
