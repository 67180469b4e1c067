"""The table of figures in load.md, from their rows."""

from __future__ import annotations

from ortune.workload.figures import list_figures_of_models


def render() -> str:
    """Return the table. Figures with the same meaning share a row."""
    names: dict[tuple[str, str], list[str]] = {}
    for figure in list_figures_of_models():
        names.setdefault((figure.meaning, figure.meaning_of_items), []).append(f"`{figure.name}`")
    lines = ["| `--objective` | optimized metric | with `--batch` |", "|---|---|---|"]
    lines += [f"| {', '.join(same)} | {meaning} | {of_items} |" for (meaning, of_items), same in names.items()]
    return "\n".join(lines) + "\n"
