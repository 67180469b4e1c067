"""What the scripts of several targets share."""

from __future__ import annotations

from ortune.export.literals import SHELL
from ortune.fleet.deploy.task import RESULTS, Task, check_word

CODES = "|".join(map(str, RESULTS))
"""Exit codes of ortune that are results, as a pattern of `case`."""

RUN_IN_CONTAINER = f"""\
# Passes SIGTERM on, and waits for the end. Exit codes {" and ".join(map(str, RESULTS))} are results: do not repeat.
"$@" &
child=$!
trap 'kill -TERM "$child"' TERM
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
case $code in {CODES}) code=0 ;; esac
exit "$code"
"""
"""Script for sh that runs its arguments in a container. Kubernetes would replace `$(NAME)` and `$$` in it."""


def join_words(task: Task, node: str) -> str:
    """Return the command for a shell.

    Args:
        task: The task.
        node: What distinguishes the node in the name of its record, as a shell expands it.

    Raises:
        UsageError: A word cannot be written.
    """
    for word in (*task.arguments, task.record):
        check_word(word, in_shell=True)
    output = [f"--output={SHELL.quote(f'{task.record}.')}{node}.ortune.json"] if task.record else []
    return " ".join([*task.command, *output, *map(SHELL.quote, task.arguments)])


def export_storage(task: Task) -> list[str]:
    """Return the lines that set the variables of the storage.

    Raises:
        UsageError: The path of the file cannot be written.
    """
    if task.storage:
        return [f"export ORTUNE_STORAGE={SHELL.quote(task.storage)}"]
    check_word(task.storage_file, in_shell=True)
    return [
        # Else the variable of whoever starts this would count.
        "unset ORTUNE_STORAGE",
        f"export ORTUNE_STORAGE_FILE={SHELL.quote(task.storage_file)}",
        '[ -r "$ORTUNE_STORAGE_FILE" ] || { echo "cannot read $ORTUNE_STORAGE_FILE" >&2; exit 2; }',
    ]
