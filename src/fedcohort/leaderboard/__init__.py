"""The leaderboard: conditions, published runs, standings, and the arena for a rule of your own."""
