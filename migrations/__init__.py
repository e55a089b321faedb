"""
The schema's versions. ``python -m migrations`` brings a database to the newest one (``__main__.py``). An empty database
gets the tables of ``smore/postgres/rows.py`` at once. The oldest version that can be brought to the newest one is 0013.

A new version: change ``smore/postgres/rows.py``, then ``alembic revision --autogenerate -m "what it does"``, then read
every line of the result. Processes of the version before run on while a version is applied, so each must leave them
working. A version can be taken back (``alembic downgrade``), down to 0013; to go further back, restore a backup.
"""
