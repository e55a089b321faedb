"""
Bodies of the admin routes and of all answers, for checking and for the API's description: one file a noun. The hot path
does not use them. The docstrings of answers and of their fields are those of the client's types too (tools/client_types.py).
"""
