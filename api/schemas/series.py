"""What the platform knows over time, in columns: the n-th value of a column belongs to the n-th moment of ``at``."""

from datetime import datetime

from api.schemas.fields import Schema
from api.schemas.jobs import JobAttempt
from smore.domain.job import JobState
from smore.domain.predictor import PredictorVersion


class Steps(Schema):
    """The steps of a series."""

    since: datetime
    """When the first step begins; later than was asked for where nothing older is kept"""
    until: datetime
    """Until when it goes; the last step may be under way, and the last two minutes are not whole yet"""
    step_s: int
    """Seconds of a step; more than were asked for where they would be over 1,500"""
    at: list[int]
    """When each step begins, seconds since 1970"""


class GpuColumns(Schema):
    """A GPU instance over time. null = it did not report."""

    used: list[float | None]
    """How busy the device was, the mean of its reports, 0 to 1"""
    functions: list[float | None]
    """The part of ``used`` that functions made"""
    memory_mib: list[float | None]
    """The most memory that functions used and that was kept for trainings, MiB"""


class GpuSeries(Steps):
    """GPU instances over time."""

    gpus: dict[str, GpuColumns]
    """Each GPU instance by its name"""


class WarmLife(Schema):
    """A time in which a function had warm instances on a GPU instance, loads included."""

    project: str
    """The project of the function"""
    function: str
    """The name of the function"""
    since: float
    """When the load of the first was asked for, seconds since 1970"""
    until: float | None
    """When the last of them ended, seconds since 1970; null = one is there"""


class GpuLanes(Steps):
    """What was on a GPU instance over time, beside its trainings. null = there was none."""

    gpu: str
    """The name of the GPU instance"""
    warm: list[WarmLife]
    """When functions had warm instances there, the newest first; shorter gaps than a step are not told"""
    closed: list[float | None]
    """The part of each step in which a closed window kept functions away, 0 to 1"""
    duty: list[float | None]
    """The least part of its time in which functions may work that the budget of a training set in each step, 0 to 1"""
    ended: list[int | None]
    """Invocations that ended there in each step"""


class FunctionForecast(Schema):
    """The arrivals that are expected of a function."""

    since: datetime
    """When the first of its steps begins"""
    step_s: int
    """Seconds of a step of the forecast"""
    source: str
    """The forecaster that was best in its backtest"""
    mean: list[float | None]
    """Expected arrivals in each step; null = nothing can be said"""
    any: list[float | None]
    """The chance of at least one; null = nothing can be said"""


class FunctionSeries(Steps):
    """
    Invocations of a function over time: arrivals when they arrived, all else when they ended. null = nobody counted, or there
    was none to take a mean of.
    """

    function: str
    """The name of the function"""
    project: str
    """The project of the function"""
    revision: int | None = None
    """The revision that it is of; null = all of them"""
    arrivals: list[int | None]
    """Invocations that arrived, of whatever revision"""
    succeeded: list[int | None]
    """Invocations that ended in each step and succeeded"""
    failed: list[int | None]
    """Invocations that ended in each step otherwise"""
    met: list[int | None]
    """Those of ``succeeded`` that kept their deadlines"""
    cold: list[int | None]
    """Cold starts among those that ran"""
    cold_reasons: dict[str, list[int | None]] = {}
    """Cold starts by reason, ``unknown`` = nobody said; null = there was none. {} where one revision is asked for"""
    wait_s: list[float | None]
    """Mean seconds from the arrival to the start, of those that succeeded"""
    load_s: list[float | None]
    """Mean seconds of a cold start"""
    run_s: list[float | None]
    """Mean seconds of a run; that of a batch is shared among its members"""
    whole_s: list[float | None]
    """Mean seconds from the arrival to the end, of those that succeeded"""
    worst_s: list[float | None]
    """The longest of these"""
    p50: list[float | None]
    """Half of these took no longer, seconds, within 10 %; null also of minutes from before there was a histogram"""
    p95: list[float | None]
    """95 % of them took no longer, as ``p50``"""
    p99: list[float | None]
    """99 % of them took no longer, as ``p50``"""
    forecast: FunctionForecast | None = None
    """The arrivals of the minutes to come; null = there is no forecast"""


class Served(Schema):
    """What ended in a span, of a function or of one of its revisions. null = there was none to take a mean of."""

    function: str
    """The name of the function"""
    project: str
    """The project of the function"""
    revision: int | None = None
    """The revision; null = all of them"""
    arrivals: list[int | None] = []
    """Arrivals in each step of ``at``; null = neither an arrival nor an end"""
    ended: list[int | None] = []
    """Invocations that ended in each step of ``at``, as ``arrivals``"""
    succeeded: int
    """Invocations that ended and succeeded"""
    failed: int
    """Invocations that ended otherwise"""
    met: int
    """Those of ``succeeded`` that kept their deadlines"""
    cold: int
    """Cold starts among those that ran"""
    wait_s: float | None = None
    """Mean seconds from the arrival to the start, of those that succeeded"""
    load_s: float | None = None
    """Mean seconds of a cold start"""
    run_s: float | None = None
    """Mean seconds of a run; that of a batch is shared among its members"""
    whole_s: float | None = None
    """Mean seconds from the arrival to the end, of those that succeeded"""
    worst_s: float | None = None
    """The longest of these"""
    p50: float | None = None
    """Half of these took no longer, seconds, within 10 %; null also where some are from before there was a histogram"""
    p95: float | None = None
    """95 % of them took no longer, as ``p50``"""
    p99: float | None = None
    """99 % of them took no longer, as ``p50``"""


class ServedFunctions(Schema):
    """What ended in a span."""

    since: datetime
    """When it begins; later than was asked for where nothing older is kept"""
    until: datetime
    """Until when it goes; the last two minutes are not whole yet"""
    at: list[int] = []
    """When each step begins, seconds since 1970; empty where no step was asked for"""
    served: list[Served]
    """Functions by name, or revisions by number; those of which nothing ended are left out"""


class JobSeries(Steps):
    """A job over time, over all its attempts. null = it did not report, or there was nothing to measure."""

    id: str
    """The id of the job"""
    name: str
    """The name of the job"""
    budget: float
    """What it may lose to functions now, a fraction of its iteration time"""
    alone_s: list[float | None]
    """Mean seconds of an iteration without a function beside it"""
    beside_s: list[float | None]
    """Mean seconds of an iteration beside functions"""
    iterations: list[int | None]
    """How many iterations it had done"""
    duty: list[float | None]
    """The part of the time in which functions might run beside it, as its budget left it; null = no step was taken"""
    harvested_s: list[float | None]
    """Seconds that functions ran beside it, a batch counted once"""
    lost: list[float | None]
    """What it had lost to functions from its beginning to the end of the step, a fraction of its iteration time"""
    lost_low: list[float | None]
    """Where the 95 % interval of ``lost`` begins"""
    lost_high: list[float | None]
    """Where the 95 % interval of ``lost`` ends"""


class PastAttempt(JobAttempt):
    """An attempt of a job, with the job and what was expected of it when it started."""

    job: str
    """The id of the job whose attempt it is"""
    name: str
    """The name of the job"""
    project: str
    """The project of the job"""
    state: JobState
    """Where the job stands now"""
    guest: bool
    """Whether it came to another training, its host"""
    told_s: float | None = None
    """How long it was expected to run when it started, seconds; null = that is not kept: a later attempt has started"""
    told_90_s: float | None = None
    """The length that one of ten such jobs exceeds, seconds"""
    told_source: str = ""
    """Where that length came from, as in ``Expected``"""


class PastAttempts(Schema):
    """Attempts of all jobs."""

    attempts: list[PastAttempt]
    """The attempts that were going on in the span, the newest first"""
    more: bool
    """Whether there are others that began earlier: ask again with the last one's ``started_at`` as ``until``"""


class PredictorVersions(Schema):
    """All fits of the predictor."""

    versions: list[PredictorVersion]
    """The versions, the newest first"""


class Calibration(Schema):
    """
    What was told of functions' degradation, against what was measured: warm runs, the newest first. Fractions: 0.1 = ten per
    cent slower. Columns: the n-th values belong together.
    """

    at: list[float]
    """When each run ended, seconds since 1970"""
    function: list[str]
    """The function, as ``project/name``"""
    device: list[str | None]
    """The device on which it ran"""
    told: list[float]
    """The degradation that the decision expected"""
    bound: list[float]
    """The bound of ``told`` that holds for 90 %"""
    measured: list[float]
    """The degradation that was measured"""
    within: float | None
    """The part of them that stayed within its bound; about 0.9 is expected. null = there is none"""
    assumed: int
    """Runs that were not compared, because their time alone was assumed"""


class Harvested(Schema):
    """What functions got, and what that cost the trainings."""

    key: str
    """The project, the function as ``project/name``, or the GPU instance; '' = it was never dispatched"""
    run_s: float
    """Seconds that functions ran, a batch counted once"""
    money: float | None = None
    """What these seconds cost at the prices that were named; null = some of them ran on a device without a price"""
    invocations: int
    """Invocations that came to an end"""
    met: int
    """Those of them that kept their deadlines"""
    cold: int
    """Cold starts among its runs"""
    saved: int
    """Runs that were warm only because an instance was held"""
    lost: float | None = None
    """What all its trainings together lost to functions, a fraction of their iteration times; null = too little was measured"""
    lost_low: float | None = None
    """Where the 95 % interval of ``lost`` begins"""
    lost_high: float | None = None
    """Where the 95 % interval of ``lost`` ends"""
    windows: int = 0
    """Closed windows that ``lost`` rests on"""


class HarvestPart(Harvested):
    """What functions got in one step, and what that cost the trainings."""

    at: int
    """When the step begins, seconds since 1970"""


class HarvestTotal(Harvested):
    """What functions got in the whole span, and what that cost the trainings."""

    trained_s: float
    """Seconds for which trainings held GPU instances, those of each GPU instance and training by themselves"""
    lost_s: float | None = None
    """About how many of these were lost to functions, by ``lost``; null as there"""


class Harvest(Schema):
    """What functions got out of the GPU instances."""

    since: datetime
    """When the first step begins; later than was asked for where nothing older is kept"""
    until: datetime
    """Until when it is counted"""
    step_s: int
    """Seconds of a step, which begin at multiples of them since 1970; more than were asked for where they would be over 1,500"""
    parts: list[HarvestPart]
    """The parts by ``at`` and ``key``; what came to nothing is left out"""
    totals: list[HarvestTotal]
    """The whole span by ``key``"""
    unpriced: list[str] = []
    """Devices on which functions ran and which no price names; '' = not known. [] where none is named"""
