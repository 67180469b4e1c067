"""The search: Optuna screens candidates, a race narrows them down, a duel proves the winner."""
