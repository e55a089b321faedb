"""The degradation table, the predictor behind it, and its prediction for a training and a function."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from api.dates import moment
from api.deps import Gateway, ReadKey, TheGateway
from api.schemas import predictor as schemas
from api.server.bodies import BoundedRoute
from smore.domain.errors import FunctionNotFound, InvalidInput, NotFound, Unavailable
from smore.domain.job import JobState
from smore.domain.workload import CONSERVATIVE, parse_function, parse_training
from smore.messages.degradation import BadTable, PlaceTable, Table
from smore.redis.tables import Tables

if TYPE_CHECKING:
    from smore.postgres.jobs import Job

router = APIRouter(prefix="/v1", tags=["predictor"], route_class=BoundedRoute)


@router.get("/predictor")
def get_predictor(gateway: TheGateway, _caller: ReadKey) -> schemas.Predictor:
    """
    Read the degradation table in force: what it rests on, how large its errors are, and for which devices it holds.
    """
    table = _table(gateway)
    if table is None:
        return schemas.Predictor(version=0)
    champion = gateway.profiles().champion()
    if champion is not None and champion.version != table.version:
        champion = None  # the next version is just being published
    return schemas.Predictor(
        version=table.version,
        source=table.source,
        created_at=moment(table.created_at),
        reason=champion.reason if champion is not None else "",
        manifest=dict(champion.manifest) if champion is not None else {},
        places=[
            schemas.PredictorPlace.of(
                place,
                measured=sum(place.measured),
                weights=len(place.weights),
                measured_trainings=sum(place.measured_trainings) if place.training_on_training else None,
            )
            for place in table.places
        ],
    )


@router.get("/predictions")
def get_predictions(
    gateway: TheGateway,
    caller: ReadKey,
    job: Annotated[
        str, Query(description="A job's id or name, or a workload such as resnet50/cpu/training/8", max_length=256)
    ] = "",
    function: Annotated[
        str,
        Query(
            description="A function's name, a model such as bert/cpu, or a workload such as bert/cpu/function/1",
            max_length=256,
        ),
    ] = "",
    k: Annotated[int, Query(ge=1, le=8, description="How many invocations run at a time")] = 1,
    rows: Annotated[int, Query(ge=1, le=1024, description="Rows of each, where `function` is no workload")] = 1,
    training: Annotated[
        str, Query(description="A training, named as `job`, to be held beside another", max_length=256)
    ] = "",
    beside: Annotated[str, Query(description="The other training, named as `job`", max_length=256)] = "",
) -> schemas.Predictions:
    """
    Predict what `k` invocations of `function` at a time would cost the training `job`, and the training them: for the
    GPU instances where the job runs, or for every device of the table where a workload is named. Of the profiled batches
    of a function the smallest with as many rows answers, else the largest. Where the table does not know one of the two,
    the degradations are assumptions, without a bound.

    With `training` and `beside`, predict what two trainings on one GPU instance would cost each other: for the devices
    on which one of them runs now, or else for every device of the table.
    """
    table = _table(gateway)
    if training or beside:
        if job or function:
            raise InvalidInput("job, function: not together with training and beside", field="job")
        pairs = _pairs(gateway, caller.project, table, training, beside)
        return schemas.Predictions(version=table.version if table is not None else 0, pairs=pairs)
    for field, value in (("job", job), ("function", function)):
        if not value:
            raise InvalidInput.at(field, "needed, or else training and beside")
    workload, where = _training(gateway, caller.project, table, job)
    model, declared, batch = _model(gateway, caller.project, table, function)
    if batch and rows not in (1, batch):
        raise InvalidInput.at("rows", f"{rows}, but {function} has {batch}")
    places = where if where is not None else [(place.device, place.sharing_mode) for place in _places(table)]
    predictions = []
    for device, sharing_mode in places:
        place = table.place(device, sharing_mode) if table is not None else None
        predictions.append(_prediction(place, device, sharing_mode, workload, model, declared, k, batch or rows))
    return schemas.Predictions(version=table.version if table is not None else 0, predictions=predictions)


def _prediction(
    place: PlaceTable | None,
    device: str,
    sharing_mode: str,
    training: str,
    model: str,
    declared: float,
    k: int,
    rows: int,
) -> schemas.PlacePrediction:
    batches = place.function_rows(*model.split("/")) if place is not None and model else []
    if place is None or not batches or training not in place.trainings:
        return schemas.PlacePrediction(
            device=device,
            sharing_mode=sharing_mode,
            training=training,
            function=model,
            k=k,
            known=False,
            measured=False,
            training_degradation=k * declared,
            training_degradation_upper=None,
            function_degradation=k * declared,
            function_degradation_upper=None,
        )
    index = next((index for batch, index in batches if batch >= rows), batches[-1][1])
    predicted = place.predict(place.trainings.index(training), index, k)
    return schemas.PlacePrediction(
        device=device,
        sharing_mode=sharing_mode,
        training=training,
        function=place.functions[index],
        k=k,
        known=True,
        measured=predicted.measured,
        training_degradation=predicted.training,
        training_degradation_upper=predicted.training_upper,
        function_degradation=predicted.function,
        function_degradation_upper=predicted.function_upper,
    )


def _pairs(
    gateway: Gateway, project: str, table: Table | None, training: str, beside: str
) -> list[schemas.PairPrediction]:
    (first, first_runs), (second, second_runs) = (
        _workload(gateway, project, table, name, field) for name, field in ((training, "training"), (beside, "beside"))
    )
    everywhere = [(place.device, place.sharing_mode) for place in _places(table)]
    predictions = []
    for device, sharing_mode in sorted({*first_runs, *second_runs}) or everywhere:
        place = table.place(device, sharing_mode) if table is not None else None
        cells = {(cell.training, cell.beside): cell for cell in (place.training_pairs() if place is not None else ())}
        one, other = cells.get((first, second)), cells.get((second, first))
        prediction = schemas.PairPrediction(
            device=device, sharing_mode=sharing_mode, training=first, beside=second, known=one is not None
        )
        if one is not None and other is not None:
            prediction.measured = one.measured and other.measured
            prediction.training_degradation, prediction.training_degradation_upper = one.degradation, one.upper
            prediction.beside_degradation, prediction.beside_degradation_upper = other.degradation, other.upper
        predictions.append(prediction)
    return predictions


def _workload(
    gateway: Gateway, project: str, table: Table | None, name: str, field: str
) -> tuple[str, list[tuple[str, str]]]:
    """The workload of a job or of its own name, and the places where the job runs now."""
    if "/" in name or not name:
        return parse_training(name, field), []
    job = _job(gateway, project, table, name)
    if not job.request.workload:
        raise InvalidInput.at(field, f"{name} names no workload, so nothing is known of it")
    return job.request.workload, _runs(gateway, job.id)


def _job(gateway: Gateway, project: str, table: Table | None, name: str) -> "Job":
    """A job by its id or name. Raises NotFound, which says how workloads are named."""
    try:
        return gateway.store().jobs.find(project, name)
    except NotFound as error:
        measured = {training for place in _places(table) for training in place.trainings}
        form = "model/size/training/batch, such as resnet50/cpu/training/8"
        raise NotFound(f"{error} {_named('workload', form, name, measured)}") from error


def _named(kind: str, form: str, name: str, measured: Iterable[str]) -> str:
    """How ``kind`` is named, those ``measured`` that begin with ``name``, and where all of them stand."""
    near = sorted(each for each in measured if each.startswith(f"{name}/"))[:3]
    meant = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"A {kind} is named {form}{meant} `smore predictor show -o yaml` lists what is measured."


def _places(table: Table | None) -> list[PlaceTable]:
    return table.places if table is not None else []


def _table(gateway: Gateway) -> Table | None:
    try:
        return Tables(gateway.client(), gateway.settings.redis.prefix).current()
    except BadTable as error:
        raise Unavailable(f"The degradation table cannot be read: {error}") from error


def _training(
    gateway: Gateway, project: str, table: Table | None, job: str
) -> tuple[str, list[tuple[str, str]] | None]:
    """The workload, and the places where the job runs now (None: a workload was named, not a job)."""
    if "/" in job:
        return parse_training(job, "job"), None
    record = _job(gateway, project, table, job)
    running = _runs(gateway, record.id)
    if not running:
        raise InvalidInput.at("job", f"{job} does not run now")
    return record.request.workload, running


def _runs(gateway: Gateway, job: str) -> list[tuple[str, str]]:
    """The places where a job runs now."""
    running = {
        (report.device, report.sharing_mode)
        for report in gateway.fleet().reports()
        if any(each.id == job and each.state == JobState.RUNNING for each in report.jobs)
    }
    return sorted(running)


def _model(gateway: Gateway, project: str, table: Table | None, function: str) -> tuple[str, float, int]:
    """The model ('' = nobody has profiled it), what was declared of the function, and the batch named, 0 = none."""
    if "/" in function:
        model, batch = parse_function(function, "function")
        return model, CONSERVATIVE, batch
    try:
        profile = gateway.store().get_function(project, function).spec
    except FunctionNotFound as error:
        measured = {row.rpartition("/function/")[0] for place in _places(table) for row in place.functions}
        raise FunctionNotFound(
            f"{error} {_named('model', 'model/size, such as bert/cpu', function, measured)}"
        ) from error
    return (profile.profile.model, profile.profile.degradation, 0) if profile is not None else ("", CONSERVATIVE, 0)
