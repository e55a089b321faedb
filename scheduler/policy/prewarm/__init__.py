"""
When instances of a function should stand ready: rules for one function at a time, pure and without a clock (paper,
section VI).
"""
