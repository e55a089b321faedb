"""What a prewarming rule would have cost on arrivals that were counted."""
