"""What writes, checks and walks the repository's documents and structure."""
