"""Confinement of runners and builds: users, namespaces, Landlock, seccomp, control groups."""
