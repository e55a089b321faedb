"""
The schema's history. ``python -m migrations`` brings a database to its newest version (``__main__.py``).

A new version: change ``smore/postgres/rows.py``, then ``alembic revision --autogenerate -m "what it does"``, then read
every line of what came out. Versions only go forward: each must leave the processes of the version before it working,
since they run on while it is applied. There is no downgrade; going back means restoring a backup.
"""
