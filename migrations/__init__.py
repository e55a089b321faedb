"""
The schema's versions. ``python -m migrations`` brings a database to the newest one (``__main__.py``).

A new version: change ``smore/postgres/rows.py``, then ``alembic revision --autogenerate -m "what it does"``, then read
every line of the result. Processes of the version before run on while a version is applied,
so each must leave them working. 0012 can be taken back (``alembic downgrade 0011``): trainings run on, those that wait are
ended. No other version can; to go back, restore a backup.
"""
