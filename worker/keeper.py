"""``python -m worker.keeper``: the training host (:mod:`worker.training.host`), by the name that compose starts."""

from worker.training.host import main

if __name__ == "__main__":
    main()
