"""
The platform on one machine: its own Redis and Postgres, the platform's processes, one supervisor over all of them.

``up`` starts all of it and ``down`` stops it. ``layout.py`` lists the processes, ``embedded.py`` finds and configures
the two servers, ``supervision.py`` is the supervisor's client, ``daemon.py`` is the supervisor's process,
``template.py`` the one from which it forks the others, ``machine.py`` starts and stops everything, ``backup.py`` copies
it while it runs, ``started_settings.py`` keeps what it was started with, ``asking.py`` and ``scrape.py`` ask it over
HTTP, ``trainings.py`` finds the trainings that outlived it, ``doctor.py`` examines what runs.
"""
