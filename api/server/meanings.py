"""
What each field of the API's schemas means, for the OpenAPI document: from the docstring of its class, which says it as
"``name``: what it is", else from the tables here. A test asks that every field has a meaning.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = r"``(\w+)``(?:(?:, | and |, and )``\w+``)*"
#: "``a`` and ``b``: what they are", up to the end of the sentence or to the next name that is explained.
_EXPLAINED: Final = re.compile(rf"(?:^|(?<=[.;:,(] )|(?<=and ))({_NAMES})(?:: | = |, null = )")
#: "… ``a`` (what it is) …".
_APPOSITION: Final = re.compile(r"``(\w+)`` \(([^()]+)\)")
_NAME: Final = re.compile(r"``(\w+)``")


def explained(docstring: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """Field → meaning, of those that the docstring of their class explains."""
    text = " ".join(docstring.split())
    meanings = {name: words for name, words in _APPOSITION.findall(text) if name in fields}
    starts = [match for match in _EXPLAINED.finditer(text) if set(_NAME.findall(match[1])) & set(fields)]
    for position, match in enumerate(starts):
        stop = starts[position + 1].start() if position + 1 < len(starts) else len(text)
        # Up to the end of the sentence: an abbreviation (e.g.) is followed by a small letter.
        words = re.split(r"\. (?=[A-Z`])", text[match.end() : stop])[0].strip(" .;,")
        if match[0].endswith("null = "):
            words = f"null = {words}"
        for name in _NAME.findall(match[1]):
            if name in fields and words:
                meanings[name] = words
    return meanings


def describe_fields(schemas: dict[str, Any]) -> None:
    """Give each property of the schemas a description that has none."""
    for name, schema in schemas.items():
        fields = schema.get("properties", {})
        meanings = explained(schema.get("description", ""), fields)
        for field, shape in fields.items():
            meaning = OF.get(f"{name}.{field}") or shape.get("description") or meanings.get(field) or COMMON.get(field)
            if meaning:
                shape["description"] = _sentence(meaning)


def describe_operation(operation: dict[str, Any]) -> None:
    """Give the parameters of an operation, and the members of bodies without a name, a description that have none."""
    for parameter in operation.get("parameters", []):
        if not parameter.get("description") and parameter["name"] in PARAMETERS:
            parameter["description"] = _sentence(PARAMETERS[parameter["name"]])
    for answer in (operation.get("requestBody", {}), *operation["responses"].values()):
        for content in answer.get("content", {}).values():
            for name, shape in content.get("schema", {}).get("properties", {}).items():
                if not shape.get("description") and name in MEMBERS:
                    content["schema"]["properties"][name] = {**shape, "description": _sentence(MEMBERS[name])}


def _sentence(text: str) -> str:
    text = text.replace("``", "`").strip()
    return text[:1].upper() + text[1:]


#: Parameters in paths and queries, by name.
PARAMETERS: Final[Mapping[str, str]] = {
    "cursor": "`next_cursor` of the page before",
    "digest": "the blob's SHA-256",
    "function": "the function's name",
    "gpu": "the GPU instance's name",
    "invocation": "the invocation's id",
    "job": "the job's id or name",
    "key": "the key's id",
    "limit": "as many at most",
    "model": "the function's name",
    "project": "of this project; without it the key's. Only operators may name another",
    "route": "any part of a route",
    "secret": "the secret's name",
    "since": "from this moment on",
    "state": "in this state alone",
    "target": "what was changed, as a whole",
    "trace": "the trace's id",
    "until": "before this moment",
    "version": "the number of the revision",
}
#: Members of bodies that have no schema of their own.
MEMBERS: Final[Mapping[str, str]] = {
    "apiVersion": "the version of the format",
    "id": "the caller's own id of the request, which the answer repeats",
    "inputs": "the tensors, each with its data or with the number of its bytes behind the JSON",
    "kind": "what the document describes",
    "metadata": "`name` of the function, and `labels`",
    "model_name": "the function's name",
    "model_version": "the revision",
    "outputs": "the tensors that are wanted, or returned",
    "parameters": "parameters of the protocol's extensions, by name",
    "spec": "the function's fields: docs/reference/function-yaml.md lists them",
}

#: Fields that mean the same in every schema that does not say otherwise.
COMMON: Final[Mapping[str, str]] = {
    "function_degradation": "how much slower the function is, a fraction: 0.1 = ten per cent",
    "function_degradation_upper": "the bound of it that holds for 90 %",
    "training_degradation": "how much slower the training is, a fraction: 0.1 = ten per cent",
    "training_degradation_upper": "the bound of it that holds for 90 %",
    "start_late_at": "when it starts at the latest, in nine cases of ten; null = nobody can say",
    "end_at": "when it is expected to end; null = nobody can say",
    "end_late_at": "when it ends at the latest, in nine cases of ten; null = nobody can say",
    "length_s": "seconds that are left of it",
    "length_90_s": "more than so many seconds are left of it in one case of ten",
    "source": "where it comes from",
    "why": "why, as a code",
    "guest": "whether another training was there first",
    "waited_s": "seconds that it has waited",
    "beside": "other trainings on its GPU instances",
    "scaling": "how many instances stand ready",
    "instance": "the id of the installation",
    "ready": "whether it can run an invocation",
    "paused": "what is paused: '' = nothing",
    "queued_at": "when it began to wait",
    "ended_at": "when it ended; null = it has not",
    "iterations_wanted": "iterations that it is to make in all; null = not said",
    "duration_s": "how long it takes, as its owner said, seconds; null = not said",
    "restarts": "how often it may be started again after a failure",
    "grace_s": "seconds from SIGTERM to SIGKILL",
    "share": "the most that another training may cost it, a fraction of its iteration time; 0 = none may train beside it",
    "micro_batches": "in how many parts its loop can run a batch",
    "solo_s": "mean seconds of an iteration while no function ran beside it; null = not measured",
    "shared_s": "mean seconds of an iteration while a function ran beside it; null = not measured",
    "windows": "closed windows that it rests on",
    "leading": "whether somebody leads",
    "places": "one entry for each device or GPU instance",
    "trainings": "trainings",
    "priority": "the function's priority; null = the policy has none",
    "decisions": "what was decided, the newest first",
    "expected": "what the job scheduler expects of it; null = nothing",
    "entries": "the entries, the newest first",
    "executions": "the attempts, the first one first",
    "keys": "the keys",
    "projects": "the projects, by name",
    "queues": "the queues",
    "secrets": "the secrets, by name",
    "traces": "the traces, the newest first",
    "lines": "the lines",
    "live": "`true`",
    "for_s": "for so many seconds; null = until it is taken back",
    "argv": "the program and its arguments",
    "arrival_at": "when the request came",
    "at": "when it happened",
    "attempt": "the number of the attempt, from 1; 0 = none yet",
    "attempts": "its attempts, the first one first",
    "batch": "invocations in its batch",
    "budget": "the most that it may lose to functions, a fraction of its iteration time",
    "candidates": "the best GPU instances as they were weighed, the chosen one first",
    "cause": "the code of why it ended as it did",
    "co_runners": "functions that ran beside it",
    "code": "the stable code of the error",
    "cold": "whether the function had to be loaded first; null = not known",
    "complete": "whether all of it is there",
    "count": "GPU instances that it asks for",
    "created_at": "when it was made",
    "cursor": "asks for the next page",
    "deadline_at": "its deadline",
    "deadline_ms": "milliseconds from arrival to the deadline",
    "decision": "the decision that placed it, with its reasons",
    "detail": "the same in words",
    "device": "the kind of GPU",
    "duty": "the part of the time in which functions may run, 0 to 1",
    "entrypoint": "`module:Class` of the handler",
    "exit_code": "its exit code; minus the signal's number where one ended it",
    "factor": "by what predicted costs are multiplied",
    "feasible": "whether its deadline can be met as things are",
    "finish_at": "when it is expected to end",
    "finished_at": "when it ended; null = it has not",
    "function": "the function's name",
    "functions": "one entry for each function",
    "gpu": "the GPU instance",
    "gpus": "GPU instances",
    "id": "its id",
    "inputs": "the tensors that it takes; null = JSON values",
    "invocations": "one entry for each invocation",
    "iterations": "iterations so far",
    "jobs": "trainings",
    "key_id": "the id of the API key",
    "kind": "what kind it is",
    "known": "whether the prediction is from the degradation table, not declared or assumed",
    "last_at": "when the last one was",
    "limit": "the bound that was reached",
    "limits": "what the project may use",
    "loss": "what functions cost it, a fraction of its iteration time; null = not enough data",
    "loss_high": "upper bound of the loss, 95 %",
    "loss_low": "lower bound of the loss, 95 %",
    "measured": "what was measured",
    "memory_mib": "memory of the device, MiB",
    "message": "the same in words",
    "name": "its name",
    "next_cursor": "`cursor` of the next page; null = this is the last one",
    "nodes": "machines",
    "outcome": "what came of it",
    "output": "what the function returned",
    "outputs": "the tensors that it returns; null = JSON values",
    "pid": "the process's number on its machine",
    "place": "the place in the queue, from 1; 0 = it is on its GPU instances",
    "policy": "the policy that decided",
    "predicted": "what was predicted; null = nothing was",
    "prewarm": "who decides when instances stand ready: `auto`, `off` or `paper`",
    "project": "the project that it belongs to",
    "reason": "why, as a code or in words",
    "refused": "how many GPU instances were refused, by code",
    "request_id": "the request's id, as `X-Request-Id`; it finds the request in the gateway's log",
    "revision": "the number of the revision",
    "revisions": "revisions",
    "rows": "rows of its input",
    "run_s": "seconds of its run",
    "scopes": "what the key may do",
    "seed": "the seed of random choices",
    "sharing_mode": "how workloads share the device",
    "since": "from when on",
    "slack_s": "seconds from its end to its deadline; negative = it was late",
    "start_at": "when it is expected to start",
    "started_at": "when it started; null = it has not",
    "state": "its state",
    "status": "the HTTP status",
    "summary": "the whole in a sentence",
    "table": "the version of the degradation table; 0 = none",
    "title": "the status in words",
    "traceback": "where a handler raised an error: the frames of its own code, as Python prints them",
    "type": "a URN of the code",
    "until": "until when",
    "updated_at": "when it was changed last",
    "version": "the version",
    "warm": "whether an instance stands ready there",
    "workload": "the profiled training that it is: `model/size/training/batch`; null = not said",
}

#: ``Schema.field`` → meaning, where neither the docstring nor the table above has the right one.
OF: Final[Mapping[str, str]] = {
    "Model.versions": "the revision that takes the traffic",
    "LogLine.attempt": "of a job: which attempt printed it",
    "LogLine.at": "when it came, by the clock of the machine `node`",
    "JobQueue.at": "when the job scheduler published it; null = never",
    "JobBody.iterations": "how long it is: so many iterations in all; null = not said",
    "JobAttempt.iterations_from": "of the job, when the attempt began",
    "JobAttempt.iterations": "of the job, at the end of the attempt",
    "Gpu.warm": "loaded instances of the caller's project",
    "Execution.predicted": "what the decision expected of it; null = nothing",
    "DryRun.predicted": "what it and the training there would cost each other",
    "Degradation.training": "how much slower the training is because of all functions beside it, a fraction",
    "Degradation.function": "how much slower the function is, a fraction",
    "Beside.until": "when one of them ended; null = both go on",
    "Beside.since": "when one of the two came",
    "Beside.guest": "whether this job came to the other one",
    "Beside.measured": "how many times longer it took in its first minute",
    "Beside.predicted": "how many times longer than alone an iteration was expected to take because of the other one",
    "Beside.loss": "what the other one cost it over the whole time, a fraction of its iteration time alone; null = not measured",
    "Alive.status": "`ok`",
    "Alive.instance": "the id of the installation, by which a client knows the platform that it means",
    "AttachBody.group": "what its ranks have in common: ranks of one group make one job",
    "Attempt.phases_ms": "where its time went, milliseconds",
    "Attempt.job_names": "the names of those of them that are of its project, by id",
    "Attempt.jobs": "trainings that ran beside it, by id",
    "Attempt.predicted": "what the decision expected of it; null = nothing",
    "AuditEntry.key_name": "the key's name now; null = it has none, or is another project's",
    "AuditEntry.target_name": "the name of the job that was changed; null = no job, no such name, or another project's",
    "Beside.seconds": "seconds that they have shared GPU instances so far",
    "Beside.unmeasured": "why `loss` is null",
    "BlobState.digest": "its SHA-256",
    "Candidate.delay_s": "seconds until it could start there; null = not known",
    "Candidate.run_s": "seconds of a run there, alone; null = not known",
    "Check.ok": "whether this part is there",
    "Decision.shadow": "where a shadow policy would have placed it; null = there is none",
    "Decision.priority": "the function's priority then; null = the policy has none",
    "Degradation.function_upper": "the bound of `function` that holds for 90 %",
    "Degradation.training_upper": "the bound of `training` that holds for 90 %",
    "Deployed.created": "false: the same revision was there already",
    "DryRun.earliest_deadline_ms": "the earliest deadline that would be accepted, milliseconds from now; null = unknown",
    "DryRun.earliest_deadline_at": "the same as an instant",
    "DryRun.gpu": "where it would run at once; null = nowhere yet",
    "DryRun.decision": "how the scheduler sees the GPU instances now",
    "Expected.source": "what told the length: `measured`, `profile`, `declared`, `name`, `project`, `platform` or `assumed`",
    "Expected.why": "why it waits, as a code",
    "Expected.guest": "whether those `beside` it were there first",
    "Explanation.gate": "what admission compared",
    "Explanation.waits": "what it waits for; null = it does not wait",
    "Explanation.complete": "false: the history does not have all of it yet, ask again",
    "Function.scaling": "how many instances stand ready; null = no revision takes traffic",
    "Gpu.slots": "batches that may run at a time",
    "Gpu.running": "batches that run",
    "Gpu.utilisation_counter": "what the utilisation was measured by",
    "Gpu.memory_used_mib": "memory in use, MiB: by functions, and what is kept for trainings",
    "Gpu.memory_total_mib": "memory of the device, MiB",
    "Gpu.paused": "whether nothing is dispatched there",
    "Gpu.reported_at": "when its worker reported this",
    "Gpu.trainings": "how many trainings are there",
    "Gpu.strangers": "unregistered processes; null = this device cannot tell",
    "Gpu.jobs": "the trainings of the caller's project there; an operator sees all",
    "Job.restarted": "how often it was started again after a failure",
    "Job.loss_windows": "closed windows that the loss rests on",
    "Job.signal": "the signal that ended it; null = none did",
    "Job.outcome": "`succeeded`, `failed`, `killed`, `stopped`, `refused`, `detached` or `unknown`; null = it goes on",
    "JobAttempt.why": "why it ended, as a code; '' = it goes on",
    "JobBody.cwd": "the folder in which an operator's program starts: an absolute path on the GPU worker's machine",
    "JobDecision.reasons": "of a start: its place in the order, how many before it did not fit, and why GPU instances were refused",
    "JobDecision.kind": "`start`, `stop`, `requeue` or `finish`",
    "JobExplanation.places": "what stands against a job that waits on each GPU instance",
    "JobQueue.kept": "free GPU instances that are kept for one job",
    "JobQueue.kept_for": "the id of that job; null = none are kept, or it is of another project that the key may not read",
    "Key.revoked_at": "when it was revoked; null = it holds",
    "LimitsBody.rate_per_s": "invocations accepted per second, over time; null = no limit",
    "LimitsBody.burst": "invocations accepted at once; null = 1",
    "LimitsBody.depth": "waiting invocations; null = no limit",
    "LimitsBody.concurrency": "waiting and running invocations; null = no limit",
    "LimitsBody.warm_memory_mib": "memory of all warm instances, MiB; null = no limit",
    "LimitsBody.job_memory_mib": "memory reserved for trainings, MiB; null = no limit",
    "LimitsBody.weight": "the project's weight in the queue of trainings; null = 1",
    "LimitsBody.share": "what another training may cost a training whose owner says nothing, a fraction; null = 0",
    "LimitsBody.jobs": "trainings that wait or run; null = `SMORE_JOBS_PER_PROJECT`",
    "LimitsBody.gpus": "GPU instances that the project's trainings may hold; null = no limit",
    "LogLine.stream": "`stdout`, `stderr`, or `smore`: the platform's own word",
    "LogLine.text": "the line",
    "LogLine.node": "the machine",
    "Model.platform": "`smore`",
    "Model.inputs": "the tensors that it takes",
    "Model.outputs": "the tensors that it returns",
    "PairPrediction.training": "the one training",
    "PairPrediction.beside": "the other one",
    "PairPrediction.beside_degradation": "how much slower the other one is, a fraction",
    "PairPrediction.beside_degradation_upper": "the bound of it that holds for 90 %",
    "Phases.queue": "waiting, milliseconds; null = not known",
    "Phases.schedule": "deciding, milliseconds; null = not known",
    "Phases.dispatch": "from the decision to the worker, milliseconds; null = not known",
    "Phases.load": "loading, milliseconds; null = not known",
    "Phases.run": "running, milliseconds; null = not known",
    "PlacePrediction.training": "the training",
    "PlacePrediction.k": "invocations at a time",
    "Predictor.source": "what made it",
    "Predictor.manifest": "what it was made of, and how",
    "Predictor.places": "what the table holds, for each device and sharing mode",
    "PredictorPlace.trainings": "profiled trainings",
    "PredictorPlace.weights": "how far each source counts",
    "Prewarm.on": "whether instances are loaded ahead",
    "Prewarm.rule": "the platform's rule",
    "Prewarm.share": "the part of the memory that instances may take that were loaded ahead",
    "PrewarmCounts.wasted": "loads ahead that nothing used",
    "PrewarmCounts.failed": "loads ahead that failed",
    "PrewarmCounts.open": "loads ahead of which that is not known yet",
    "PrewarmCounts.held_gb_s": "memory times time of loaded instances, GB-seconds",
    "PrewarmCounts.idle_gb_s": "of which without work, GB-seconds",
    "PrewarmCounts.wasted_gb_s": "of which by instances that were loaded ahead and never used, GB-seconds",
    "PrewarmFunction.wanted": "instances that are to be loaded now",
    "PrewarmFunction.loaded": "instances that are loaded, or being loaded",
    "PrewarmFunction.load_s": "seconds of a load",
    "PrewarmFunction.parked": "instances in pinned host memory",
    "PrewarmFunction.host_s": "seconds of a load from there",
    "PrewarmFunction.holds": "from when until when how many stay loaded",
    "PrewarmFunction.counts": "what that achieved and cost",
    "PrewarmHold.instances": "at least so many stay loaded",
    "Project.use": "what it uses now; null = not asked for",
    "Queue.depth": "invocations that wait",
    "Queue.paused": "whether nothing of it is dispatched",
    "Queue.boost_until": "until when the boost holds; null = until it is ended",
    "Queue.pinned_until": "until when the pin holds; null = until it is ended",
    "QueuedJob.source": "what told the length: `measured`, `profile`, `declared`, `name`, `project`, `platform` or `assumed`",
    "QueuedJob.why": "why it waits, as a code",
    "Readiness.checks": "each part, and what is the matter with it",
    "Readiness.job_leader": "who leads the queue of trainings; '' = nobody",
    "Readiness.warnings": "what does not keep the platform from serving",
    "Revision.requirements": "packages of its environment",
    "SecretBody.value": "the value",
    "SecretOf.secret": "the secret's name",
    "Server.extensions": "extensions of the protocol that it speaks",
    "Statement.harvested_since": "from when on the harvest is counted",
    "Statement.windows": "closed windows that the loss rests on",
    "Statement.missing_windows": "closed windows that are missing for a loss",
    "Statement.windows_to_go": "closed windows until it is proven; null = it cannot be told, or the job is over",
    "StepsBody.first": "the number of the first iteration",
    "StepsBody.steps": "[end in epoch seconds, duration in seconds] of each, the oldest first",
    "Stranger.allowed": "whether functions may run beside it",
    "TensorSpec.datatype": "a datatype of the Open Inference Protocol",
    "TensorSpec.shape": "sizes; the first is -1 (rows), -1 elsewhere is any size",
    "Waits.paused": "`function` or `platform` where that is paused, else ''",
    "Problem.detail": "what went wrong, in words",
    "Problem.type": "`urn:smore:problem:CODE`",
}
