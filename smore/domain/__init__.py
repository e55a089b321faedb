"""The platform's nouns: pure values on the standard library alone."""
