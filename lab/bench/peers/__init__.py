"""What SMore's users would otherwise run, started and measured beside it."""
