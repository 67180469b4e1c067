"""What a gate tells to other programs: JUnit, Markdown, annotations of GitHub, a history."""
