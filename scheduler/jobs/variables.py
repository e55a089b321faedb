"""The variables of trainings, which Postgres keeps sealed."""

from pathlib import Path

from smore.postgres.job_ledger import JobLedger
from smore.postgres.jobs import Job
from smore.process.vault import Vault, unseal_env


class Variables:
    """Opens each job's variables once. ``secrets_file``: of the key that they are sealed with."""

    def __init__(self, ledger: JobLedger, secrets_file: Path) -> None:
        self._ledger, self._secrets_file = ledger, secrets_file
        self._open: dict[str, dict[str, str]] = {}

    def of(self, row: Job) -> dict[str, str]:
        """Raises NoKey and Sealed."""
        if row.id not in self._open:
            sealed, env = self._ledger.env(row.id), dict[str, str]()
            if sealed is not None:
                env = unseal_env(Vault.open(self._secrets_file), row.project, row.name, sealed)
            self._open[row.id] = env
        return self._open[row.id]

    def forget(self, job: str) -> None:
        """The job's attempt is over."""
        self._open.pop(job, None)
