"""
How many requests each function will get in the next minutes: forecasters for all functions at once (paper, section
VI-A).
"""
